// bucket_code.h: the code of small unsigned numbers: per class, four buckets of power-of-two width and an
// escape.
//
// Local. The buckets of a class lie side by side from 0; each value in a bucket is equally likely. The escape
// is every value past them: the value itself, 16 bits, goes to a side list. Each value of a bucket has
// `frequency` of the 65536 slots; the escape has what the buckets leave, at least 1.
//
// Sizes are what vectors hold: a class is an index into one 16-byte lookup, a bucket of a class one into 64
// 16-bit entries, and ends of buckets are found on bytes: the step of a value (see step_of) fits one, so that
// ends from 128 on are multiples of 16.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/rans.h"

namespace moesaic::codec {

// Values below 128 are a step each, values from there to 2159 one step for 16; 255 is all the rest.
inline constexpr std::uint32_t kLastStep = 255;
constexpr std::uint32_t step_of(std::uint32_t value) {
  return std::min({value, (value >> 4) + 120, kLastStep});
}
constexpr std::uint32_t first_of_step(std::uint32_t step) { return step < 128 ? step : (step - 120) * 16; }

struct BucketClass {
  static constexpr int kNumBuckets = 4;  // besides the escape
  static constexpr int kEscape = kNumBuckets;
  static constexpr std::uint32_t kMaxWidthLog2 = 10;

  std::array<std::uint8_t, kNumBuckets> width_log2 = {};
  std::array<std::uint16_t, kNumBuckets> frequency = {1, 1, 1, 1};

  // First value of a bucket, or of the escape.
  std::uint32_t base(int bucket) const {
    std::uint32_t value = 0;
    for (int b = 0; b < bucket; ++b) value += 1u << width_log2[b];
    return value;
  }
  // Slots of a bucket, or of the escape.
  Slots slots(int bucket) const {
    std::uint32_t start = 0;
    for (int b = 0; b < bucket; ++b) start += std::uint32_t{frequency[b]} << width_log2[b];
    return bucket == kEscape ? Slots{start, 65536 - start, 0}
                             : Slots{start, frequency[bucket], width_log2[bucket]};
  }
  bool operator==(const BucketClass&) const = default;
};

struct BucketCode {
  static constexpr std::size_t kMaxClasses = 12;
  static constexpr std::size_t kBytesPerClass = BucketClass::kNumBuckets * 5 / 2;
  static constexpr std::size_t kMaxBytes = 1 + kMaxClasses * kBytesPerClass;

  std::vector<BucketClass> classes;

  void append_to(std::vector<std::uint8_t>& out) const;
  // Takes all of `bytes`. CorruptData when they are too few or too many, or when a class breaks the rules
  // above.
  static BucketCode read(std::span<const std::uint8_t> bytes);
};

}  // namespace moesaic::codec
