// targets.h: what the tests of the coders share: every instruction set in turn, words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/codec/every_target.h"

namespace moesaic::codec {

using Words16 = std::vector<std::uint16_t>;
using Bytes8 = std::vector<std::uint8_t>;

inline constexpr std::size_t kSizes[] = {0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 95, 1001, 4096, 4127};

// bf16 weights with magnitudes that fall off as trained ones do, and what they become after a step whose
// size, in units of the last place, doubles with each exponent below the top.
inline Words16 weights(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Words16 words(n);
  for (auto& word : words) {
    const unsigned exponent = 124 - static_cast<unsigned>(std::min(__builtin_ctz(random() | 0x800000u), 20));
    word = static_cast<std::uint16_t>((random() & 0x8000) | exponent << 7 | (random() & 0x7f));
  }
  return words;
}

inline Words16 stepped(const Words16& from, unsigned size, unsigned seed) {
  std::mt19937 random(seed);
  Words16 words = from;
  for (auto& word : words) {
    const int below = std::max(0, 124 - (word >> 7 & 255));
    const int range = static_cast<int>(size) << std::min(below, 12);
    const int move = range == 0 ? 0 : static_cast<int>(random() % (2u * range + 1)) - range;
    word = static_cast<std::uint16_t>(word + move / 2);
  }
  return words;
}

// Any bits at all.
inline Words16 noise(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Words16 words(n);
  for (auto& word : words) word = static_cast<std::uint16_t>(random());
  return words;
}

}  // namespace moesaic::codec
