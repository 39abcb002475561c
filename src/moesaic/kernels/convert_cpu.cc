#include "moesaic/kernels/convert.h"

#include <cstring>

#include "moesaic/kernels/element.h"
#include "moesaic/kernels/reference.h"

namespace moesaic::kernels {

void reference::convert(DType from, const void* source, DType to, void* target, std::int64_t n) {
  for_row_dtype(from, "convert, source", [&](auto in) {
    for_row_dtype(to, "convert, target", [&](auto out) {
      const auto* x = static_cast<const decltype(in)*>(source);
      auto* y = static_cast<decltype(out)*>(target);
      if (from == to) {
        if (n > 0) std::memcpy(target, source, static_cast<std::size_t>(n) * sizeof out);
        return;
      }
      for (std::int64_t i = 0; i < n; ++i) store(y[i], load(x[i]));
    });
  });
}

}  // namespace moesaic::kernels
