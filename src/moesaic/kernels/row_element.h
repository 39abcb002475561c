// row_element.h: element.h's load() and store() for code that also runs on a device.
//
// bf16.h's conversions are no constexpr functions, and nvcc lets a device call only those; tests hold the two
// together.
#pragma once

#include <bit>
#include <cstdint>

#include "moesaic/core/bf16.h"

namespace moesaic::kernels {

constexpr float widened(float element) { return element; }
constexpr float widened(BF16 element) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(element.bits) << 16);
}

constexpr void round_into(float& element, float value) { element = value; }
constexpr void round_into(BF16& element, float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
  element.bits =
      static_cast<std::uint16_t>(nan ? word >> 16 | 0x40u : (word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

}  // namespace moesaic::kernels
