// activation.h: the expert's non-linearity, forward and backward.
//
// Local. P rows, F expert width; fp32 or bf16 in and out, arithmetic in fp32, rounded once.
//   SwiGLU: in [P,2F] = gate | up; h[p,f] = silu(gate) * up, silu(v) = v / (1 + exp(-v)).   (Shazeer 2020)
//   ReLU:   in [P,F];              h = max(in, 0); the derivative at 0 is 0.
// SwiGLU's exponential is a polynomial. Against the oracle, before the rounding to bf16: h and the up half of
// din within 4 ulp of fp32, the gate half within 2^-21 |dh * up| (its slope crosses zero). An element's bits
// do not depend on its place; they may differ between CPU models.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

void swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h, Stream stream = {});
// dh [P,F] -> din [P,2F].
void swiglu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                     void* din, Stream stream = {});

void relu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h, Stream stream = {});
// dh [P,F] -> din [P,F].
void relu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                   void* din, Stream stream = {});

}  // namespace moesaic::kernels
