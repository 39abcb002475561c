// inputs.h: what the kernel tests share: rows of either dtype, poisoned outputs, every instruction set in
// turn.
#pragma once

#include "moesaic/core/simd_targets.h"
// After the targets are chosen:
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "moesaic/core/bf16.h"
#include "moesaic/core/dtype.h"
#include "moesaic/core/rng.h"

namespace moesaic::kernels {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr std::int64_t kWidths[] = {0, 1, 7, 8, 15, 16, 17, 33, 127, 128};

// Runs `body` once for each instruction set that is compiled in and that this machine has.
template <typename Body>
void for_every_target(Body body) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  for (const std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

// n fp32 or bf16 elements as bytes: exactly what a kernel reads or writes, so that equality means equal bits.
struct Rows {
  DType dtype;
  std::vector<std::uint8_t> bytes;

  Rows(DType type, std::int64_t n) : dtype(type), bytes(static_cast<std::size_t>(n * size_of(type))) {
    for (std::int64_t i = 0; i < n; ++i) set(i, kNaN);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size()) / size_of(dtype); }
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  const float* floats() const { return reinterpret_cast<const float*>(bytes.data()); }
  float* floats() { return reinterpret_cast<float*>(bytes.data()); }

  float at(std::int64_t i) const {
    if (dtype == DType::kF32) return floats()[i];
    BF16 value;
    std::memcpy(&value, bytes.data() + 2 * i, 2);
    return to_float(value);
  }
  void set(std::int64_t i, float value) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    } else {
      const BF16 rounded = to_bf16(value);
      std::memcpy(bytes.data() + 2 * i, &rounded, 2);
    }
  }
  bool operator==(const Rows&) const = default;
};

// Standard normals with a -0 now and then.
inline Rows random_rows(DType dtype, std::int64_t n, std::uint64_t seed) {
  Rows rows(dtype, n);
  const std::uint64_t key = random_key(seed, "rows");
  for (std::int64_t i = 0; i < n; ++i) rows.set(i, i % 13 == 5 ? -0.0f : random_normal(key, i));
  return rows;
}

// Which slots belong to which rows, and where they land: row i has i % 4 slots (so some have none), spread
// over `num_experts` of which number 2 stays empty.
struct Slots {
  std::vector<std::int64_t> begin{0};
  std::vector<std::int32_t> expert;
  std::vector<std::int64_t> position;
  std::vector<float> weight;

  explicit Slots(std::int64_t num_rows, std::int32_t num_experts = 4) {
    const std::uint64_t key = random_key(7, "slots");
    for (std::int64_t i = 0; i < num_rows; ++i) {
      for (std::int64_t j = 0; j < i % 4; ++j) {
        const auto draw = static_cast<std::int32_t>(random_bits(key, expert.size()) % num_experts);
        expert.push_back(draw == 2 ? 0 : draw);
        weight.push_back(random_normal(key, expert.size(), 1));
      }
      begin.push_back(static_cast<std::int64_t>(expert.size()));
    }
    position.resize(expert.size(), -1);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(expert.size()); }
};

// Distance in representable fp32 values; 0 for two NaNs.
inline std::int64_t ulps_apart(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : 1ll << 40;
  const auto ordered = [](float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? std::int64_t{std::numeric_limits<std::int32_t>::min()} - bits : std::int64_t{bits};
  };
  return std::abs(ordered(a) - ordered(b));
}

}  // namespace moesaic::kernels
