// optimizer_factors.h: what an AdamW step multiplies by, computed in fp64 and rounded to fp32 once.
//
// For the sources of this room only: the oracle and its twin must start from the same bits.
#pragma once

#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/kernels/optimizer.h"

namespace moesaic::kernels {

struct AdamWFactors {
  float keep;  // 1 - lr * decay
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float step_size;                 // lr / (1 - beta1^t)
  float inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

inline AdamWFactors adamw_factors(const AdamW& options, double decay) {
  require(options.step >= 1, "adamw: got step {}, expected 1 or more", options.step);
  const auto step = static_cast<double>(options.step);
  return {
      .keep = static_cast<float>(1 - options.learning_rate * decay),
      .beta1 = static_cast<float>(options.beta1),
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .step_size = static_cast<float>(options.learning_rate / (1 - std::pow(options.beta1, step))),
      .inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, step))),
      .eps = static_cast<float>(options.eps),
  };
}

}  // namespace moesaic::kernels
