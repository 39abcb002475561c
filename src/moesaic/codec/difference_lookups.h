// difference_lookups.h: the tables of a message as what vectors look up: rows of 16 bytes.
//
// Local. Built for each stream, in a fraction of a microsecond.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "moesaic/codec/bucket_code.h"
#include "moesaic/codec/difference.h"

namespace moesaic::codec {

inline constexpr std::size_t kNumSymbols = BucketClass::kNumBuckets + 1;  // buckets and the escape

// One byte for each class (16) of each bucket and the escape.
using BucketBytes = std::uint8_t[kNumSymbols][16];

struct DifferenceLookups {
  alignas(64) std::uint8_t class_of_context[DifferenceTables::kNumContexts] = {};
  BucketBytes base_low = {}, base_high = {};  // the escape's is 0
  BucketBytes place_low = {},
              place_high = {};  // first slot less base: a value's place is this plus the value
  BucketBytes start_low = {}, start_high = {};  // first slot
  BucketBytes biased_start_high = {};           // ^ 0x80: for comparison as signed words
  BucketBytes frequency_low = {}, frequency_high = {};
  BucketBytes width_log2 = {};
  std::uint8_t first_step[kNumSymbols - 1][16] =
      {};  // of bucket s + 1, ^ 0x80: for comparison as signed bytes
  std::uint8_t first_exponent;
  std::uint32_t max_frequency = 0;

  explicit DifferenceLookups(const DifferenceTables& tables);
};

// Words by 16 indices, as bytes.
struct WordBytes {
  alignas(16) std::uint8_t low[16] = {}, high[16] = {};

  template <typename Function>
  constexpr explicit WordBytes(const Function& word_of) {
    for (unsigned i = 0; i < 16; ++i) {
      const auto word = static_cast<std::uint16_t>(word_of(i));
      low[i] = static_cast<std::uint8_t>(word);
      high[i] = static_cast<std::uint8_t>(word >> 8);
    }
  }
};

// By width_log2: the width, what MulHigh shifts right with (0 for no shift), and the bits inside the width.
inline constexpr WordBytes kWidth([](unsigned k) { return 1u << k; });
inline constexpr WordBytes kInverseWidth([](unsigned k) { return k == 0 ? 0u : 65536u >> k; });
inline constexpr WordBytes kRawBits([](unsigned k) { return (1u << k) - 1; });

// By nibble. With s = -1 where it is negative, else 0: a difference d is folded to (d ^ s) - s - predicted,
// and back to (e ^ s) + (sign * predicted - s).
inline constexpr WordBytes kFolded([](unsigned n) {
  return (is_negative(n) ? 1 : 0) - kPredicted[level_of(n)];
});
inline constexpr WordBytes kUnfolded([](unsigned n) {
  return is_negative(n) ? 1 - kPredicted[level_of(n)] : kPredicted[level_of(n)];
});
alignas(16) inline constexpr std::uint8_t kNegativeNibble[16] = {0,   0,   0,   0,   0,   0,   0,   0,
                                                                 255, 255, 255, 255, 255, 255, 255, 255};

// Where the bytes of a vector find their nibble among 16 bytes of packed nibbles: the first row for bytes
// packed from two vectors of 16 words, the last two for those of 8 words (lanes_inl.h).
alignas(32) inline constexpr std::array<std::array<std::uint8_t, 32>, 4> kNibbleOrder = {{
    {0, 0, 1, 1, 2, 2, 3, 3, 8,  8,  9,  9,  10, 10, 11, 11,
     4, 4, 5, 5, 6, 6, 7, 7, 12, 12, 13, 13, 14, 14, 15, 15},
    {},
    {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7},
    {8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15},
}};

}  // namespace moesaic::codec
