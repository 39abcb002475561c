// gradient_format.h: every byte of a gradient's message. Little-endian; for gradient.cc and the tests.
//
//   header, 40 bytes                                  then side_bytes of scales (gradient_scales.h) and
//   tables
//    0  4  magic "MOEG"                               (entropy.h), on the entropy wire only; then the chunks,
//    4  1  version, 1                                 each with the header of wire.h: mode, number, length,
//    5  1  wire, as in gradient.h                     0 for the words' checksum (there is no reference that
//    6  2  0                                          could differ), checksum. Chunk i has words
//    8  8  unit                                       [i*c, min((i+1)*c, words)), c = chunk words.
//   16  8  words
//   24  4  chunk words                                A chunk of zeros has mode raw and no payload. Any
//   other: 28  4  side bytes                                 a bit for each block of 128 words, 0: all zero;
//   the words 32  4  CRC32C of the side bytes                   of the other blocks, one after the other, as
//   mode says: 36  4  CRC32C of bytes 0..35                      raw, entropy (after the shift of their
//   exponents), int8
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "moesaic/codec/gradient.h"
#include "moesaic/codec/int8.h"
#include "moesaic/codec/wire.h"

namespace moesaic::codec {

inline constexpr std::size_t kGradientHeaderBytes = 40;

constexpr std::size_t bitmap_bytes(std::size_t words) { return (block_count(words) + 7) / 8; }

struct GradientHeader {
  GradientWire wire = GradientWire::kBf16;
  std::uint64_t unit = 0;
  std::uint64_t words = 0;
  std::uint32_t chunk_words = 0;
  std::uint32_t side_bytes = 0;
  std::uint32_t side_crc = 0;
  std::uint32_t crc = 0;  // set by write() and read_gradient_header()
};

// Writes kGradientHeaderBytes and sets `header.crc`.
void write(GradientHeader& header, std::span<std::byte> to);
// CorruptData where a field has no meaning, or bytes are missing.
GradientHeader read_gradient_header(std::span<const std::byte> from);

}  // namespace moesaic::codec
