// element.h: reading and writing one element as fp32, and the one switch on a row's dtype.
//
// For the sources of this room only.
#pragma once

#include <string_view>

#include "moesaic/core/bf16.h"
#include "moesaic/core/dtype.h"
#include "moesaic/core/error.h"

namespace moesaic::kernels {

inline float load(const float& element) { return element; }
inline float load(const BF16& element) { return to_float(element); }
inline void store(float& element, float value) { element = value; }
inline void store(BF16& element, float value) { element = to_bf16(value); }

// Calls body(float{}) or body(BF16{}).
template <typename Body>
void for_row_dtype(DType dtype, std::string_view kernel, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kBF16:
      return body(BF16{});
    default:
      throw InvalidArgument(fmt::format("{}: got dtype {}, expected fp32 or bf16", kernel, name_of(dtype)));
  }
}

// Calls body(float{}, float{}), body(BF16{}, BF16{}) or body(BF16{}, float{}): an element of the rows, and
// one of what is made from them.
template <typename Body>
void for_row_and_result_dtype(DType dtype, DType result, std::string_view kernel, Body body) {
  require(result == dtype || result == DType::kF32,
          "{}: got a result of {} from rows of {}, expected the rows' or fp32", kernel, name_of(result),
          name_of(dtype));
  for_row_dtype(dtype, kernel, [&](auto element) {
    if (result == dtype) return body(element, element);
    body(element, float{});
  });
}

}  // namespace moesaic::kernels
