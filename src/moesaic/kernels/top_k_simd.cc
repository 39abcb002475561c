// Short lists: rows in lanes (select_inl.h). Long ones: each row as integers that sort as its result does.
#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/core/error.h"
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/panels.h"
#include "moesaic/kernels/top_k.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/top_k_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/select_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

// Ascending keys: descending scores, of equal ones (0 and -0 are equal) ascending indices.
inline std::uint64_t key_of(float score, std::int64_t index) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  const bool negative = (bits & 0x80000000u) != 0;
  return std::uint64_t{negative ? bits : ~(bits | 0x80000000u)} << 32 | static_cast<std::uint64_t>(index);
}

void LongList(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
              float* values) {
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * n;
    for (std::int64_t j = 0; j < n; ++j) keys[j] = key_of(row[j], j);
    if (k < n) std::nth_element(keys.begin(), keys.begin() + k, keys.end());
    std::sort(keys.begin(), keys.begin() + k);
    for (std::int64_t i = 0; i < k; ++i) {
      ids[r * k + i] = static_cast<std::int32_t>(keys[i] & 0xffffffffu);
      values[r * k + i] = row[ids[r * k + i]];
    }
  }
}

void TopK(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
          float* values) {
  if (k > kMaxK) return LongList(scores, rows, n, k, ids, values);
  Buffer panel(panel_elements(kPanelRows, n) * static_cast<std::int64_t>(sizeof(float)));
  std::int64_t row[kPanelRows];
  std::iota(row, row + kPanelRows, 0);
  float best[kMaxK * kSelectLanes];
  std::int32_t places[kMaxK * kSelectLanes];
  for (std::int64_t r = 0; r < rows; r += kPanelRows) {
    const std::int64_t count = std::min(kPanelRows, rows - r), lanes = panel_lanes(count);
    pack_panels(DType::kF32, scores + r * n, row, nullptr, count, n, panel.as<float>());
    for (std::int64_t first = 0; first < count; first += kSelectLanes) {
      select_best(panel.as<float>() + first, lanes, n, k, best, places);
      for (std::int64_t lane = first; lane < std::min(first + kSelectLanes, count); ++lane) {
        for (std::int64_t j = 0; j < k; ++j) {
          ids[(r + lane) * k + j] = places[j * kSelectLanes + lane - first];
          values[(r + lane) * k + j] = best[j * kSelectLanes + lane - first];
        }
      }
    }
  }
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(TopK);

void top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
           float* values, Stream) {
  require(1 <= k && k <= n, "top_k: got k = {}, expected 1 <= k <= n = {}", k, n);
  HWY_DYNAMIC_DISPATCH(TopK)(scores, rows, n, k, ids, values);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
