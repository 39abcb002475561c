// row_dtype.cuh: element.h's switch on a row's dtype, and whether packs fit, for .cu files.
#pragma once

#include <cstdint>
#include <type_traits>

#include "moesaic/core/device_code.h"
#include "moesaic/core/device_error.h"
#include "moesaic/core/dtype.h"
#include "moesaic/kernels/row_element.h"

namespace moesaic::kernels {

template <class Body>
void for_row_dtype(DType dtype, const char* kernel, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BF16{});
    default:
      throw_invalid_argument(kernel, "another dtype", "fp32 or bf16");
  }
}

// Calls body(T{}, integral_constant<elements of a pack>): 16 bytes where rows of `width` allow it, else one.
template <class Body, class... Pointers>
void for_packs(DType dtype, const char* kernel, Body body, std::int64_t width, const Pointers*... rows) {
  for_row_dtype(dtype, kernel, [&](auto element) {
    using T = decltype(element);
    if (whole_packs<T>(width, rows...)) return body(element, std::integral_constant<int, 16 / sizeof(T)>{});
    body(element, std::integral_constant<int, 1>{});
  });
}

}  // namespace moesaic::kernels
