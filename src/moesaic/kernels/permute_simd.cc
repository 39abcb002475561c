// Only the scaled copy has a twin. permute_rows is one memcpy per row: 1.2 to 1.4 times a single memcpy of
// the same bytes (rows of 512 bytes in cache, of 4 KiB out of it). counting_permute is a chain of table
// look-ups, 1.7 ns a slot.
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"
#include "moesaic/kernels/permute.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/permute_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

void PermuteRowsScaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                       const std::int64_t* position_of_slot, const float* factor, std::int64_t num_rows,
                       std::int64_t width, void* permuted) {
  for_row_dtype(dtype, "permute_rows_scaled", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const T* from = static_cast<const T*>(rows) + i * width;
      for (std::int64_t s = slot_begin[i]; s < slot_begin[i + 1]; ++s) {
        T* to = static_cast<T*>(permuted) + position_of_slot[s] * width;
        const Vector scale = hn::Set(F32(), factor[s]);
        for_each_vector(width, [&](auto access, std::int64_t d) {
          access.store(to + d, hn::Mul(scale, access.load(from + d)));
        });
      }
    }
  });
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(PermuteRowsScaled);

void permute_rows_scaled(DType dtype, const void* rows, const std::int64_t* slot_begin,
                         const std::int64_t* position_of_slot, const float* factor, std::int64_t num_rows,
                         std::int64_t width, void* permuted, Stream) {
  HWY_DYNAMIC_DISPATCH(PermuteRowsScaled)
  (dtype, rows, slot_begin, position_of_slot, factor, num_rows, width, permuted);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
