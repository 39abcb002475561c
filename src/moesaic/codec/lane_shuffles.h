// lane_shuffles.h: byte orders that bring chosen words of a 128-bit block together, or spread them out again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moesaic::codec {

struct LaneShuffles {
  using Order = std::array<std::uint8_t, 16>;
  static constexpr std::uint8_t kNothing = 0x80;  // reads as 0

  // By the bits of the chosen words.
  alignas(16) std::array<Order, 256> compress{};  // chosen words first
  alignas(16) std::array<Order, 256> expand{};    // the first words to the places chosen, 0 to the others

  constexpr LaneShuffles() {
    for (std::size_t bits = 0; bits < 256; ++bits) {
      compress[bits].fill(0);
      expand[bits].fill(kNothing);
      std::uint8_t next = 0;
      for (std::uint8_t word = 0; word < 8; ++word) {
        if ((bits >> word & 1) == 0) continue;
        for (std::uint8_t byte = 0; byte < 2; ++byte) {
          compress[bits][2 * next + byte] = static_cast<std::uint8_t>(2 * word + byte);
          expand[bits][2 * word + byte] = static_cast<std::uint8_t>(2 * next + byte);
        }
        ++next;
      }
    }
  }
};

inline constexpr LaneShuffles kLaneShuffles;

}  // namespace moesaic::codec
