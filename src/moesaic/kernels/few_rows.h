// few_rows.h: a matrix times a few rows, for decode: every weight is read once, straight from where it lies,
// and that is what the time goes into.
//
// Local, one thread. Each output element is the same chain of multiply-adds as in panel_product (panels.h),
// so the bits are the same. Panels put rows side by side in a vector, which for few rows is mostly empty;
// here the vector holds output elements: blocks of weights are transposed in registers. What lies ahead in
// the matrix is prefetched, for rows are read side by side and the hardware does not follow so many.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

// From here on panels are faster.
inline constexpr std::int64_t kFewRows = 8;

// out [n,M] = in [n,K] w^T: w [M,K] fp32 or bf16, 1 <= n <= kFewRows, else InvalidArgument. `next`: memory
// that is read soon after, of at least M*K elements; null where unknown.
void few_rows_product(DType dtype, const void* w, std::int64_t m, std::int64_t k, const float* in,
                      std::int64_t n, float* out, const void* next = nullptr, Stream stream = {});

}  // namespace moesaic::kernels
