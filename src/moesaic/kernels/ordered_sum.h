// ordered_sum.h: sums over a row's slots in one documented order.
//
// Local. R rows, S slots, D width; y [S,D] sits in permuted order (permute.h), dtype fp32 or bf16. No
// atomics: each output element is one sequential sum, so equal inputs give equal bits whatever the vector
// width.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

// out[i] = round(sum over slots s of row i, ascending, of weight[s] * y[position_of_slot[s]]). Products and
// sums in fp32, no fused multiply-add, starting from 0. weight null = all ones. Rows without slots become 0.
// out [R,D] of `result`: y's dtype, or fp32 (nothing is rounded then).
void ordered_weighted_sum(DType dtype, const void* y, const std::int64_t* slot_begin,
                          const std::int64_t* position_of_slot, const float* weight, std::int64_t num_rows,
                          std::int64_t width, DType result, void* out, Stream stream = {});

// dot[s] = <a[i], y[position_of_slot[s]]> for row i of slot s, in fp32: 16 partial sums (element d goes to
// partial d mod 16, d ascending), then partials are added pairwise: j += j+8, j += j+4, j += j+2, j += j+1. a
// [R,D].
void slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
               const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width, float* dot,
               Stream stream = {});

}  // namespace moesaic::kernels
