#include "moesaic/kernels/ordered_sum.h"

#include "moesaic/kernels/element.h"
#include "moesaic/kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/ordered_sum_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

void OrderedWeightedSum(DType dtype, const void* y, const std::int64_t* slot_begin,
                        const std::int64_t* position_of_slot, const float* weight, std::int64_t num_rows,
                        std::int64_t width, void* out) {
  for_row_dtype(dtype, "ordered_weighted_sum", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const std::int64_t begin = slot_begin[i];
      const std::int64_t end = slot_begin[i + 1];
      for_each_vector(width, [&](auto access, std::int64_t d) {
        Vector sum = hn::Zero(F32());
        for (std::int64_t s = begin; s < end; ++s) {
          const Vector value = access.load(static_cast<const T*>(y) + position_of_slot[s] * width + d);
          // Not MulAdd: the documented sum rounds the product.
          sum = hn::Add(sum, weight ? hn::Mul(hn::Set(F32(), weight[s]), value) : value);
        }
        access.store(static_cast<T*>(out) + i * width + d, sum);
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
                          std::int64_t width, void* out, Stream) {
  HWY_DYNAMIC_DISPATCH(OrderedWeightedSum)
  (dtype, y, slot_begin, position_of_slot, weight, num_rows, width, out);
}

void slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
               const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width, float* dot,
               Stream) {
  HWY_DYNAMIC_DISPATCH(SlotDots)(dtype, a, y, slot_begin, position_of_slot, num_rows, width, dot);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
