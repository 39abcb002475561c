// Rows in lanes: as many rows as a vector has lanes keep their k best so far in k vectors, sorted, and each
// next score is carried down that list by compare-and-swap. No branch depends on a score.
#include <algorithm>
#include <vector>

#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/top_k.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/top_k_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

using I32 = hn::Rebind<std::int32_t, F32>;
constexpr std::int64_t kLanes = hn::MaxLanes(F32());
constexpr std::int64_t kMaxK = 8;  // a longer list no longer fits the registers: the oracle takes over

// A list of the best scores of kLanes rows, best first; an empty place holds NaN, which every score passes.
// best, ids: [kK, kLanes]; columns: [n, kLanes], the rows side by side.
template <int kK>
HWY_INLINE void select(const float* columns, std::int64_t n, float* best, std::int32_t* ids) {
  const F32 f32;
  const I32 i32;
  Vector values[kK];
  hn::Vec<I32> places[kK];
  for (int j = 0; j < kK; ++j) {
    values[j] = hn::NaN(f32);
    places[j] = hn::Zero(i32);
  }
  for (std::int64_t e = 0; e < n; ++e) {
    const Vector score = hn::LoadU(f32, columns + e * kLanes);
    const auto place = hn::Set(i32, static_cast<std::int32_t>(e));
    // From the worst place up: a place keeps what it holds, or takes the score, or what stood one place
    // above.
    auto stays = hn::Ge(values[kK - 1], score);  // in front when equal: it has the lower index
    for (int j = kK - 1; j > 0; --j) {
      const auto above_stays = hn::Ge(values[j - 1], score);
      const Vector moved = hn::IfThenElse(above_stays, score, values[j - 1]);
      const auto moved_place = hn::IfThenElse(hn::RebindMask(i32, above_stays), place, places[j - 1]);
      values[j] = hn::IfThenElse(stays, values[j], moved);
      places[j] = hn::IfThenElse(hn::RebindMask(i32, stays), places[j], moved_place);
      stays = above_stays;
    }
    values[0] = hn::IfThenElse(stays, values[0], score);
    places[0] = hn::IfThenElse(hn::RebindMask(i32, stays), places[0], place);
  }
  for (int j = 0; j < kK; ++j) {
    hn::StoreU(values[j], f32, best + j * kLanes);
    hn::StoreU(places[j], i32, ids + j * kLanes);
  }
}

void TopK(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
          float* values) {
  if (k < 1 || k > n || k > kMaxK) return reference::top_k(scores, rows, n, k, ids, values);
  std::vector<float> columns(static_cast<std::size_t>(n * kLanes));
  float best[kMaxK * kLanes];
  std::int32_t places[kMaxK * kLanes];
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    const std::int64_t count = std::min(kLanes, rows - r);
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float* row = scores + (r + std::min(lane, count - 1)) * n;  // spare lanes repeat the last row
      for (std::int64_t e = 0; e < n; ++e) columns[e * kLanes + lane] = row[e];
    }
    switch (k) {
      case 1:
        select<1>(columns.data(), n, best, places);
        break;
      case 2:
        select<2>(columns.data(), n, best, places);
        break;
      case 3:
      case 4:
        select<4>(columns.data(), n, best, places);
        break;
      default:
        select<kMaxK>(columns.data(), n, best, places);
    }
    for (std::int64_t lane = 0; lane < count; ++lane) {
      for (std::int64_t j = 0; j < k; ++j) {
        ids[(r + lane) * k + j] = places[j * kLanes + lane];
        values[(r + lane) * k + j] = best[j * kLanes + lane];
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
  HWY_DYNAMIC_DISPATCH(TopK)(scores, rows, n, k, ids, values);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
