// order.h: what a difference of two bf16 words is, and what a previous difference predicts.
//
// All arithmetic is mod 2^16, exact for every pattern of bits. Signs are as good as random: no branches on
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moesaic::codec {

// Puts bf16 patterns in the order of their values, as signed 16-bit numbers. Its own inverse.
constexpr std::uint16_t in_order(std::uint16_t word) {
  return static_cast<std::uint16_t>(word ^ (-(word >> 15) & 0x7fff));
}

constexpr std::uint16_t difference_of(std::uint16_t current, std::uint16_t reference) {
  return static_cast<std::uint16_t>(in_order(current) - in_order(reference));
}

// 0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...
constexpr std::uint16_t zigzag(std::uint16_t d) { return static_cast<std::uint16_t>((d << 1) ^ -(d >> 15)); }
constexpr std::uint16_t unzigzag(std::uint16_t z) { return static_cast<std::uint16_t>((z >> 1) ^ -(z & 1)); }

// A previous difference as four bits: the sign in bit 3, the level of the magnitude below it. A level's first
// magnitude, and what it predicts: 0.85 of its middle, rounded.
inline constexpr std::size_t kNumLevels = 8;
inline constexpr std::array<std::uint8_t, kNumLevels> kLevelFirst = {0, 1, 2, 3, 5, 8, 14, 26};
inline constexpr std::array<std::uint8_t, kNumLevels> kPredicted = {0, 1, 2, 3, 5, 9, 16, 28};

constexpr unsigned level_of(unsigned nibble) { return nibble & 7; }
constexpr bool is_negative(unsigned nibble) { return (nibble & 8) != 0; }

constexpr unsigned nibble_of(std::uint16_t difference) {
  const int d = static_cast<std::int16_t>(difference), magnitude = d < 0 ? -d : d;
  unsigned level = kNumLevels - 1;
  while (magnitude < kLevelFirst[level]) --level;
  return (d < 0 ? 8u : 0u) | level;
}

// Two words to a byte, the even word in the low bits.
constexpr unsigned nibble_at(std::span<const std::uint8_t> previous, std::size_t i) {
  return previous[i / 2] >> (i % 2 * 4) & 15;
}

// What is coded of a difference: folded by the sign of the previous one and rid of what it predicts; and
// back. A previous difference of 0 changes nothing.
constexpr std::uint16_t coded_value(std::uint16_t current, std::uint16_t reference, unsigned nibble) {
  const int d = difference_of(current, reference), minus = -static_cast<int>(is_negative(nibble));
  return zigzag(static_cast<std::uint16_t>(((d ^ minus) - minus) - kPredicted[level_of(nibble)]));
}
constexpr std::uint16_t decoded_word(std::uint16_t value, std::uint16_t reference, unsigned nibble) {
  const int d = unzigzag(value) + kPredicted[level_of(nibble)];
  return in_order(static_cast<std::uint16_t>(in_order(reference) + (is_negative(nibble) ? -d : d)));
}

}  // namespace moesaic::codec
