// optimizer.h: one optimizer step over a flat fp32 shard, element by element.
//
// Local. n elements; master, gradient and moments fp32, updated in place. `gradient` is multiplied by
// gradient_scale (the clipping factor) on the way in. `decay` is the weight decay of this stretch (0 for
// norms and biases).
//   AdamW (Loshchilov & Hutter 2019): master -= lr*decay*master; m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g;
//     master -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps),  t = step, from 1. As torch.optim.AdamW.
//   SGD: g += decay*master; m = momentum*m + g; master -= lr*m. As torch.optim.SGD (dampening 0, no
//   Nesterov); momentum_buffer null = no momentum (m = g).
// Factors are computed in fp64 and rounded to fp32 once; elements in fp32 without fused multiply-add, in the
// order written in optimizer_cpu.cc: equal inputs give equal bits at any vector width. Errors: AdamW with
// step < 1: InvalidArgument.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"

namespace moesaic::kernels {

struct AdamW {
  double learning_rate, beta1, beta2, eps;
  std::int64_t step;
};
void adamw(const AdamW& options, double decay, float gradient_scale, std::int64_t n, const float* gradient,
           float* master, float* exp_avg, float* exp_avg_sq, Stream stream = {});

struct Sgd {
  double learning_rate, momentum;
};
void sgd(const Sgd& options, double decay, float gradient_scale, std::int64_t n, const float* gradient,
         float* master, float* momentum_buffer, Stream stream = {});

// Sum of squares in fp64: 8 partial sums (element i goes to partial i mod 8), added ascending.
double sum_of_squares(const float* values, std::int64_t n, Stream stream = {});

}  // namespace moesaic::kernels
