// bucket_code.h: the code of small unsigned numbers: per class, five buckets of power-of-two width.
//
// Local. The first four buckets of a class lie side by side from 0; each value in a bucket is equally likely.
// The fifth, the escape, is every value past them: the value itself goes to a side list, 16 bits. A bucket's
// share of 65536 is frequency << width_log2, the escape's what is left, at least 1.
//
// Sizes are what a vector holds: a class is an index into one 16-byte lookup, all buckets of all classes one
// into 64 16-bit entries, and every bucket ends below 256, so buckets are found on bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesaic::codec {

struct BucketClass {
  static constexpr int kNumBuckets = 4;          // besides the escape
  static constexpr std::uint32_t kMaxEnd = 255;  // values the buckets may cover

  std::array<std::uint8_t, kNumBuckets> width_log2 = {};
  std::array<std::uint16_t, kNumBuckets> frequency = {1, 1, 1, 1};  // of one value in the bucket

  // First value, and first of the 65536 slots, of a bucket; of the escape with b = kNumBuckets.
  std::uint32_t base(int b) const;
  std::uint32_t start(int b) const;
};

struct BucketCode {
  static constexpr int kMaxClasses = 12;
  static constexpr std::size_t kMaxBytes = 1 + kMaxClasses * BucketClass::kNumBuckets * 3;

  std::vector<BucketClass> classes;

  void append_to(std::vector<std::uint8_t>& out) const;
  // Reads from the front of `bytes` and drops what it read. CorruptData when the bytes end early or a class
  // breaks the rules above.
  static BucketCode read(std::span<const std::uint8_t>& bytes);
};

}  // namespace moesaic::codec
