// bucket_fit.h: the best buckets and frequencies for counted values.
//
// Local. Values are counted by step (bucket_code.h). Deterministic: the same counts give the same code
// everywhere.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "moesaic/codec/bucket_code.h"

namespace moesaic::codec {

using StepCounts = std::array<std::uint32_t, kLastStep + 1>;

// log2 of a positive number, the same on every machine (the library's may not be), to about 1e-7. Loops over
// it become vectors.
inline float log2_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const std::uint32_t above_sqrt_half = bits - 0x3f3504f3u;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(above_sqrt_half) >> 23);
  bits = (above_sqrt_half & 0x7fffffu) + 0x3f3504f3u;
  float m;
  std::memcpy(&m, &bits, sizeof m);  // in [sqrt(1/2), sqrt(2))
  const float s = (m - 1) / (m + 1), s2 = s * s;
  return exponent + s * (2.88539008f + s2 * (0.96179669f + s2 * (0.57707802f + s2 * 0.41219859f)));
}

// Dynamic programming over where buckets end. An escape is priced above its bits, for the time it takes.
BucketClass fit_buckets(const StepCounts& counts);

// Bits that values with these counts take, and what they would with the code's buckets but frequencies of
// their own.
double cost_in_bits(const BucketClass& code, const StepCounts& counts);
double attainable_bits(const BucketClass& code, const StepCounts& counts);

}  // namespace moesaic::codec
