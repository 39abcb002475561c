// select_inl.h: the k largest of as many rows as a vector has lanes, for k up to 8. They are kept in k
// vectors, sorted, and each next score is carried down that list by compare-and-swap. No branch depends on a
// score.
//
// For *_simd.cc only, which include it once per instruction set (hence no plain include guard).
#if defined(MOESAIC_KERNELS_SELECT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOESAIC_KERNELS_SELECT_INL_H
#undef MOESAIC_KERNELS_SELECT_INL_H
#else
#define MOESAIC_KERNELS_SELECT_INL_H
#endif

#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

using I32 = hn::Rebind<std::int32_t, F32>;
constexpr std::int64_t kSelectLanes = hn::MaxLanes(F32());
constexpr std::int64_t kMaxK = 8;  // a longer list no longer fits the registers

// A list of the best scores of kSelectLanes rows, best first; an empty place holds NaN, which every score
// passes. best, ids: [kK, kSelectLanes]; columns: [n, stride], the rows side by side.
template <int kK>
HWY_INLINE void select(const float* columns, std::int64_t stride, std::int64_t n, float* best,
                       std::int32_t* ids) {
  const F32 f32;
  const I32 i32;
  Vector values[kK];
  hn::Vec<I32> places[kK];
  for (int j = 0; j < kK; ++j) {
    values[j] = hn::NaN(f32);
    places[j] = hn::Zero(i32);
  }
  for (std::int64_t e = 0; e < n; ++e) {
    const Vector score = hn::LoadU(f32, columns + e * stride);
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
    hn::StoreU(values[j], f32, best + j * kSelectLanes);
    hn::StoreU(places[j], i32, ids + j * kSelectLanes);
  }
}

// The list of the k best, k <= kMaxK, in the first k places of best and ids.
HWY_INLINE void select_best(const float* columns, std::int64_t stride, std::int64_t n, std::int64_t k,
                            float* best, std::int32_t* ids) {
  switch (k) {
    case 1:
      return select<1>(columns, stride, n, best, ids);
    case 2:
      return select<2>(columns, stride, n, best, ids);
    case 3:
    case 4:
      return select<4>(columns, stride, n, best, ids);
    default:
      return select<kMaxK>(columns, stride, n, best, ids);
  }
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
