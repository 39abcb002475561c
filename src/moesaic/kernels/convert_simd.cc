#include "moesaic/kernels/convert.h"

#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/convert_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

void Convert(DType from, const void* source, DType to, void* target, std::int64_t n) {
  for_row_dtype(from, "convert, source", [&](auto in) {
    for_row_dtype(to, "convert, target", [&](auto out) {
      const auto* x = static_cast<const decltype(in)*>(source);
      auto* y = static_cast<decltype(out)*>(target);
      if (from == to) {
        if (n > 0) std::memcpy(target, source, static_cast<std::size_t>(n) * sizeof out);
        return;
      }
      for_each_vector(n, [&](auto access, std::int64_t i) { access.store(y + i, access.load(x + i)); });
    });
  });
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(Convert);

void convert(DType from, const void* source, DType to, void* target, std::int64_t n, Stream) {
  HWY_DYNAMIC_DISPATCH(Convert)(from, source, to, target, n);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
