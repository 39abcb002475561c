#include "moesaic/kernels/ordered_sum.h"

#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/ordered_sum_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

// kVectors vectors of one row of the sum, so that a slot's position and weight are fetched once for all of
// them.
template <int kVectors, class Access, typename T, typename Result>
HWY_INLINE void sum_slots(const Access& access, const T* y, const std::int64_t* position, const float* weight,
                          std::int64_t num_slots, std::int64_t width, Result* out) {
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  Vector sum[kVectors];
  for (Vector& v : sum) v = hn::Zero(F32());
  for (std::int64_t s = 0; s < num_slots; ++s) {
    const T* row = y + position[s] * width;
    const Vector factor = hn::Set(F32(), weight ? weight[s] : 1.0f);
    for (int v = 0; v < kVectors; ++v) {
      // Not MulAdd: the documented sum rounds the product.
      sum[v] = hn::Add(sum[v], hn::Mul(factor, access.load(row + v * kLanes)));
    }
  }
  for (int v = 0; v < kVectors; ++v) access.store(out + v * kLanes, sum[v]);
}

void OrderedWeightedSum(DType dtype, const void* y, const std::int64_t* slot_begin,
                        const std::int64_t* position_of_slot, const float* weight, std::int64_t num_rows,
                        std::int64_t width, DType result, void* out) {
  constexpr int kBlock = 4;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  for_row_and_result_dtype(dtype, result, "ordered_weighted_sum", [&](auto element, auto of_result) {
    using T = decltype(element);
    using Result = decltype(of_result);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const std::int64_t begin = slot_begin[i];
      const std::int64_t num_slots = slot_begin[i + 1] - begin;
      const std::int64_t* position = position_of_slot + begin;
      const float* weights = weight ? weight + begin : nullptr;
      const T* from = static_cast<const T*>(y);
      Result* to = static_cast<Result*>(out) + i * width;
      std::int64_t d = 0;
      for (; d + kBlock * kLanes <= width; d += kBlock * kLanes) {
        sum_slots<kBlock>(Whole{}, from + d, position, weights, num_slots, width, to + d);
      }
      for_each_vector(width - d, [&](auto access, std::int64_t at) {
        sum_slots<1>(access, from + d + at, position, weights, num_slots, width, to + d + at);
      });
    }
  });
}

constexpr std::int64_t kPartials = 16;

void SlotDots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
              const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width, float* dot) {
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  constexpr std::int64_t kVectors = kPartials / kLanes;
  for_row_dtype(dtype, "slot_dots", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const T* left = static_cast<const T*>(a) + i * width;
      for (std::int64_t s = slot_begin[i]; s < slot_begin[i + 1]; ++s) {
        const T* right = static_cast<const T*>(y) + position_of_slot[s] * width;
        Vector partial[kVectors];
        for (Vector& p : partial) p = hn::Zero(F32());
        std::int64_t d = 0;
        for (; d + kPartials <= width; d += kPartials) {
          for (std::int64_t v = 0; v < kVectors; ++v) {
            const std::int64_t at = d + v * kLanes;
            partial[v] = hn::Add(partial[v], hn::Mul(load_vector(left + at), load_vector(right + at)));
          }
        }
        // Padding with zeros changes no bit: a sum that starts from +0 is never -0.
        for (std::int64_t v = 0; d < width; ++v, d += kLanes) {
          const Tail access{std::min(kLanes, width - d)};
          partial[v] = hn::Add(partial[v], hn::Mul(access.load(left + d), access.load(right + d)));
        }

        float sums[kPartials];
        for (std::int64_t v = 0; v < kVectors; ++v) hn::StoreU(partial[v], F32(), sums + v * kLanes);
        for (int step = kPartials / 2; step > 0; step /= 2) {
          for (int j = 0; j < step; ++j) sums[j] += sums[j + step];
        }
        dot[s] = sums[0];
      }
    }
  });
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(OrderedWeightedSum);
HWY_EXPORT(SlotDots);

void ordered_weighted_sum(DType dtype, const void* y, const std::int64_t* slot_begin,
                          const std::int64_t* position_of_slot, const float* weight, std::int64_t num_rows,
                          std::int64_t width, DType result, void* out, Stream) {
  HWY_DYNAMIC_DISPATCH(OrderedWeightedSum)
  (dtype, y, slot_begin, position_of_slot, weight, num_rows, width, result, out);
}

void slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
               const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width, float* dot,
               Stream) {
  HWY_DYNAMIC_DISPATCH(SlotDots)(dtype, a, y, slot_begin, position_of_slot, num_rows, width, dot);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
