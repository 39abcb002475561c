// wire.h: every byte of a message. Little-endian; for message.h's sources and the tests.
//
//   header, 64 bytes                                  then tables_bytes of tables, then the chunks:
//    0  4  magic "MOEC"                                0  1  mode
//    4  1  version, 1                                  1  3  number of the chunk, mod 2^24
//    5  1  dtype: 1 bf16, 2 fp32, 3 fp16               4  4  length: bytes of payload
//    6  1  method, as in method.h                      8  4  CRC32C of the words it decodes to
//    7  1  1: a key, 0: not                           12  4  CRC32C of the header's, bytes 0..11, payload
//    8  8  unit                                       16     payload
//   16  8  epoch of the reference
//   24  8  words                                      Chunk i has words [i*c, min((i+1)*c, words)), c = chunk
//   32  8  hash of the reference, 0 for a key         words. A chunk's checksum goes on from the header's, so
//   40  4  chunk words                                a chunk belongs to one place of one message.
//   44  4  tables bytes; 0: those held, or none
//   48  4  CRC32C of the tables in use, 0 if none
//   52  8  0
//   60  4  CRC32C of bytes 0..59
//
//   mode            payload of n words
//   raw             n words
//   same            nothing: the reference's words
//   sparse          the reference's words but for k: k indices of 16 bits, ascending; k words
//   exponent_reuse  n bytes, sign then mantissa; k indices of 16 bits, ascending; k exponents: those that are
//                   not the reference's
//   residual        what difference.h makes of the words, with Predictor::kReference
//   momentum        the same with Predictor::kMomentum
//   entropy         what entropy.h makes of the words
//   int8            a bf16 scale for each block of 128 words, then n of int8 (int8.h); lossy
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moesaic/codec/chunk_mode.h"
#include "moesaic/codec/message.h"
#include "moesaic/codec/method.h"
#include "moesaic/core/dtype.h"

namespace moesaic::codec {

std::string_view name_of(ChunkMode mode);

// Indices in a chunk have 16 bits, and its nibbles start on a whole byte.
constexpr bool valid_chunk_words(std::size_t words) {
  return words >= 2 && words <= kMaxChunkWords && words % 2 == 0;
}

// Whether a message of `method` may hold such a chunk: what is not labelled lossy is lossless, and a key
// needs no reference.
bool may_hold(Method method, bool key, ChunkMode mode);

struct Header {
  DType dtype = DType::kBF16;
  Method method = Method::kRaw;
  bool key = true;
  std::uint64_t unit = 0;
  std::uint64_t epoch = 0;
  std::uint64_t words = 0;
  std::uint64_t reference_hash = 0;
  std::uint32_t chunk_words = 0;
  std::uint32_t tables_bytes = 0;
  std::uint32_t tables_crc = 0;
  std::uint32_t crc = 0;  // set by write() and read_header()

  std::uint64_t chunks() const { return words / chunk_words + (words % chunk_words != 0); }
};

// Writes kHeaderBytes and sets `header.crc`.
void write(Header& header, std::span<std::byte> to);
// CorruptData where a field has no meaning. `from` holds kHeaderBytes or more.
Header read_header(std::span<const std::byte> from);

struct ChunkHeader {
  ChunkMode mode = ChunkMode::kRaw;
  std::uint32_t number = 0;
  std::uint32_t length = 0;
  std::uint32_t words_crc = 0;
  std::uint32_t crc = 0;
};

// Writes the header of the chunk whose payload lies behind it: `chunk` is both. Sets its checksum.
void write(const ChunkHeader& header, std::uint32_t message_crc, std::span<std::byte> chunk);
// The fields as they are, the mode unchecked. `from` holds kChunkHeaderBytes or more.
ChunkHeader read_chunk_header(std::span<const std::byte> from);
// What the checksum of a chunk (header and payload) must be.
std::uint32_t chunk_crc(std::uint32_t message_crc, std::span<const std::byte> chunk);

}  // namespace moesaic::codec
