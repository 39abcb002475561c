// The exponential is Highway's polynomial (1 ulp); the activations stay within 4 fp32 ulp of the oracle,
// before the one rounding to the rows' dtype.
#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/activation_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/contrib/math/math-inl.h>

#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

// 1 + exp(-x). From 104 on the exponential is inf in fp32, and beyond it out of the polynomial's range.
inline Vector one_plus_exp_of_minus(Vector x) {
  const F32 f32;
  return hn::Add(hn::Set(f32, 1), hn::Exp(f32, hn::Min(hn::Neg(x), hn::Set(f32, 104))));
}

void Swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h) {
  for_row_dtype(dtype, "swiglu", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t p = 0; p < rows; ++p) {
      const T* gates = static_cast<const T*>(in) + p * 2 * width;
      const T* ups = gates + width;
      T* out = static_cast<T*>(h) + p * width;
      for_each_vector(width, [&](auto access, std::int64_t f) {
        const Vector gate = access.load(gates + f);
        const Vector silu = hn::Div(gate, one_plus_exp_of_minus(gate));
        access.store(out + f, hn::Mul(silu, access.load(ups + f)));
      });
    }
  });
}

void SwigluBackward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                    void* din) {
  for_row_dtype(dtype, "swiglu_backward", [&](auto element) {
    using T = decltype(element);
    const Vector one = hn::Set(F32(), 1);
    for (std::int64_t p = 0; p < rows; ++p) {
      const T* gates = static_cast<const T*>(in) + p * 2 * width;
      const T* ups = gates + width;
      const T* grads = static_cast<const T*>(dh) + p * width;
      T* dgates = static_cast<T*>(din) + p * 2 * width;
      T* dups = dgates + width;
      for_each_vector(width, [&](auto access, std::int64_t f) {
        const Vector gate = access.load(gates + f);
        const Vector grad = access.load(grads + f);
        const Vector sigmoid = hn::Div(one, one_plus_exp_of_minus(gate));
        const Vector slope = hn::Mul(sigmoid, hn::Add(one, hn::Mul(gate, hn::Sub(one, sigmoid))));
        access.store(dgates + f, hn::Mul(hn::Mul(grad, access.load(ups + f)), slope));
        access.store(dups + f, hn::Mul(grad, hn::Mul(gate, sigmoid)));
      });
    }
  });
}

void Relu(DType dtype, const void* in, std::int64_t n, void* h) {
  for_row_dtype(dtype, "relu", [&](auto element) {
    using T = decltype(element);
    const Vector zero = hn::Zero(F32());
    for_each_vector(n, [&](auto access, std::int64_t i) {
      const Vector value = access.load(static_cast<const T*>(in) + i);
      access.store(static_cast<T*>(h) + i, hn::IfThenElse(hn::Le(value, zero), zero, value));
    });
  });
}

void ReluBackward(DType dtype, const void* in, const void* dh, std::int64_t n, void* din) {
  for_row_dtype(dtype, "relu_backward", [&](auto element) {
    using T = decltype(element);
    const Vector zero = hn::Zero(F32());
    for_each_vector(n, [&](auto access, std::int64_t i) {
      const Vector value = access.load(static_cast<const T*>(in) + i);
      const Vector grad = access.load(static_cast<const T*>(dh) + i);
      access.store(static_cast<T*>(din) + i, hn::IfThenElse(hn::Le(value, zero), zero, grad));
    });
  });
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(Swiglu);
HWY_EXPORT(SwigluBackward);
HWY_EXPORT(Relu);
HWY_EXPORT(ReluBackward);

void swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h, Stream) {
  HWY_DYNAMIC_DISPATCH(Swiglu)(dtype, in, rows, width, h);
}

void swiglu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                     void* din, Stream) {
  HWY_DYNAMIC_DISPATCH(SwigluBackward)(dtype, in, dh, rows, width, din);
}

void relu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h, Stream) {
  HWY_DYNAMIC_DISPATCH(Relu)(dtype, in, rows * width, h);
}

void relu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                   void* din, Stream) {
  HWY_DYNAMIC_DISPATCH(ReluBackward)(dtype, in, dh, rows * width, din);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
