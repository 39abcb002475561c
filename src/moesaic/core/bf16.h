// bf16.h: the upper half of an fp32 word, converted with round-to-nearest-even.
#pragma once

#include <bit>
#include <cstdint>

namespace moesaic {

struct BF16 {
  std::uint16_t bits;
};

inline float to_float(BF16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Ties go to even; a NaN stays a (quiet) NaN with its sign.
inline BF16 to_bf16(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  if ((word & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((word >> 16) | 0x40u)};
  const std::uint32_t rounding = 0x7fffu + ((word >> 16) & 1u);
  return {static_cast<std::uint16_t>((word + rounding) >> 16)};
}

}  // namespace moesaic
