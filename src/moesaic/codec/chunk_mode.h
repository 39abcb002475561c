// chunk_mode.h: the modes of a chunk (wire.h says what each holds), and which of them is worth it.
//
// Shared by the CPU's encoder and the device's, so that both write the same message.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moesaic::codec {

enum class ChunkMode : std::uint8_t {
  kRaw,
  kSame,
  kSparse,
  kExponentReuse,
  kResidual,
  kMomentum,
  kEntropy,
  kInt8,
};
inline constexpr std::uint8_t kNumChunkModes = 8;

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::size_t kChunkHeaderBytes = 16;

// So few changes that no coder's stream, which has a head of more than 128 bytes, is shorter than their list.
inline constexpr std::size_t kFewChanges = 32;

// More changes than this and their list is longer than the n words, or than the coder's stream should be.
constexpr std::size_t most_listed(std::size_t n, double bits_per_word) {
  const auto estimate = static_cast<std::size_t>(bits_per_word * static_cast<double>(n) / 8);
  const std::size_t shorter_than_words = (n - 1) / 2, worth_a_try = kFewChanges + estimate / 4;
  return shorter_than_words < worth_a_try ? shorter_than_words : worth_a_try;
}

}  // namespace moesaic::codec
