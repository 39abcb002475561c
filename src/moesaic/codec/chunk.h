// chunk.h: the payload of one chunk, in each mode that needs no entropy coder, and what is held of the chunk.
//
// Local. The formats are wire.h's. An encoder returns how many bytes it wrote, or nothing where the mode does
// not apply or would not be smaller than the words themselves; `out` has room for 2 bytes a word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moesaic/codec/reference_state.h"

namespace moesaic::codec {

// A Reference's part that belongs to one chunk; empty spans for what it does not keep.
struct HeldChunk {
  std::span<const std::uint16_t> words;
  std::span<const std::uint8_t> exponents;
  std::span<const std::uint8_t> differences;  // the chunk starts on a whole byte
};

HeldChunk held_chunk(const Reference& reference, std::size_t begin, std::size_t words);

// Memory that chunks use one after the other, for at most `chunk_words` words each.
struct Workspace {
  explicit Workspace(std::size_t chunk_words)
      : index(chunk_words), exponent(chunk_words), held(chunk_words) {}

  std::vector<std::uint16_t> index;
  std::vector<std::uint8_t> exponent;
  std::vector<std::uint8_t> held;
};

void encode_raw(std::span<const std::uint16_t> words, std::span<std::byte> out);
void decode_raw(std::span<const std::byte> payload, std::span<std::uint16_t> words);

// `index`: where the words are not the held ones.
std::size_t encode_sparse(std::span<const std::uint16_t> words, std::span<const std::uint16_t> index,
                          std::span<std::byte> out);
void decode_sparse(const HeldChunk& held, std::span<const std::byte> payload, std::span<std::uint16_t> words);

std::optional<std::size_t> encode_exponent_reuse(std::span<const std::uint16_t> words, const HeldChunk& held,
                                                 Workspace& work, std::span<std::byte> out);
void decode_exponent_reuse(const HeldChunk& held, std::span<const std::byte> payload, Workspace& work,
                           std::span<std::uint16_t> words);

// Nothing also where a word is infinite or not a number.
std::optional<std::size_t> encode_int8(std::span<const std::uint16_t> words, std::span<std::byte> out);
void decode_int8(std::span<const std::byte> payload, std::span<std::uint16_t> words);

}  // namespace moesaic::codec
