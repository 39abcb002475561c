// The same operations in the same order as the oracle (no fused multiply-add), so the same bits.
#include "moesaic/kernels/optimizer.h"

#include "moesaic/core/simd_targets.h"
#include "moesaic/kernels/optimizer_factors.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/kernels/optimizer_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/kernels/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::kernels::HWY_NAMESPACE {

void AdamWStep(const AdamWFactors& factors, float gradient_scale, std::int64_t n, const float* gradient,
               float* master, float* exp_avg, float* exp_avg_sq) {
  const F32 f32;
  const Vector scale = hn::Set(f32, gradient_scale);
  const Vector keep = hn::Set(f32, factors.keep);
  const Vector beta1 = hn::Set(f32, factors.beta1);
  const Vector one_minus_beta1 = hn::Set(f32, factors.one_minus_beta1);
  const Vector beta2 = hn::Set(f32, factors.beta2);
  const Vector one_minus_beta2 = hn::Set(f32, factors.one_minus_beta2);
  const Vector step_size = hn::Set(f32, factors.step_size);
  const Vector correction = hn::Set(f32, factors.inverse_sqrt_correction2);
  const Vector eps = hn::Set(f32, factors.eps);
  for_each_vector(n, [&](auto access, std::int64_t i) {
    const Vector g = hn::Mul(access.load(gradient + i), scale);
    const Vector kept = hn::Mul(access.load(master + i), keep);
    const Vector m = hn::Add(hn::Mul(beta1, access.load(exp_avg + i)), hn::Mul(one_minus_beta1, g));
    const Vector v =
        hn::Add(hn::Mul(beta2, access.load(exp_avg_sq + i)), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
    const Vector divisor = hn::Add(hn::Mul(hn::Sqrt(v), correction), eps);
    access.store(master + i, hn::Sub(kept, hn::Div(hn::Mul(step_size, m), divisor)));
    access.store(exp_avg + i, m);
    access.store(exp_avg_sq + i, v);
  });
}

void SgdStep(float learning_rate, float momentum, float decay, float gradient_scale, std::int64_t n,
             const float* gradient, float* master, float* momentum_buffer) {
  const F32 f32;
  for_each_vector(n, [&](auto access, std::int64_t i) {
    const Vector before = access.load(master + i);
    const Vector g = hn::Add(hn::Mul(access.load(gradient + i), hn::Set(f32, gradient_scale)),
                             hn::Mul(hn::Set(f32, decay), before));
    Vector m = g;
    if (momentum_buffer != nullptr) {
      m = hn::Add(hn::Mul(hn::Set(f32, momentum), access.load(momentum_buffer + i)), g);
      access.store(momentum_buffer + i, m);
    }
    access.store(master + i, hn::Sub(before, hn::Mul(hn::Set(f32, learning_rate), m)));
  });
}

double SumOfSquares(const float* values, std::int64_t n) {
  constexpr std::int64_t kPartials = 8;
  const hn::CappedTag<double, kPartials> f64;
  const hn::Rebind<float, decltype(f64)> f32;
  constexpr std::int64_t kLanes = hn::MaxLanes(f64);
  hn::Vec<decltype(f64)> partial[kPartials / kLanes];
  for (auto& p : partial) p = hn::Zero(f64);
  std::int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    for (std::int64_t v = 0; v < kPartials / kLanes; ++v) {
      const auto wide = hn::PromoteTo(f64, hn::LoadU(f32, values + i + v * kLanes));
      partial[v] = hn::Add(partial[v], hn::Mul(wide, wide));
    }
  }
  double sums[kPartials];
  for (std::int64_t v = 0; v < kPartials / kLanes; ++v) hn::StoreU(partial[v], f64, sums + v * kLanes);
  for (std::int64_t j = 0; i + j < n; ++j) sums[j] += double{values[i + j]} * double{values[i + j]};
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

}  // namespace moesaic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::kernels {

HWY_EXPORT(AdamWStep);
HWY_EXPORT(SgdStep);
HWY_EXPORT(SumOfSquares);

void adamw(const AdamW& options, double decay, float gradient_scale, std::int64_t n, const float* gradient,
           float* master, float* exp_avg, float* exp_avg_sq, Stream) {
  HWY_DYNAMIC_DISPATCH(AdamWStep)
  (adamw_factors(options, decay), gradient_scale, n, gradient, master, exp_avg, exp_avg_sq);
}

void sgd(const Sgd& options, double decay, float gradient_scale, std::int64_t n, const float* gradient,
         float* master, float* momentum_buffer, Stream) {
  HWY_DYNAMIC_DISPATCH(SgdStep)
  (static_cast<float>(options.learning_rate), static_cast<float>(options.momentum), static_cast<float>(decay),
   gradient_scale, n, gradient, master, momentum_buffer);
}

double sum_of_squares(const float* values, std::int64_t n, Stream) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquares)(values, n);
}

}  // namespace moesaic::kernels
#endif  // HWY_ONCE
