#include "moesaic/kernels/optimizer.h"

#include <array>
#include <cmath>

#include "moesaic/kernels/optimizer_factors.h"
#include "moesaic/kernels/reference.h"

namespace moesaic::kernels {

void reference::adamw(const AdamW& options, double decay, float gradient_scale, std::int64_t n,
                      const float* gradient, float* master, float* exp_avg, float* exp_avg_sq) {
  const AdamWFactors f = adamw_factors(options, decay);
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * gradient_scale;
    const float kept = master[i] * f.keep;
    const float m = f.beta1 * exp_avg[i] + f.one_minus_beta1 * g;
    const float v = f.beta2 * exp_avg_sq[i] + f.one_minus_beta2 * (g * g);
    master[i] = kept - f.step_size * m / (std::sqrt(v) * f.inverse_sqrt_correction2 + f.eps);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

void reference::sgd(const Sgd& options, double decay, float gradient_scale, std::int64_t n,
                    const float* gradient, float* master, float* momentum_buffer) {
  const auto learning_rate = static_cast<float>(options.learning_rate);
  const auto momentum = static_cast<float>(options.momentum);
  const auto weight_decay = static_cast<float>(decay);
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] * gradient_scale + weight_decay * master[i];
    if (momentum_buffer == nullptr) {
      master[i] -= learning_rate * g;
      continue;
    }
    const float m = momentum * momentum_buffer[i] + g;
    momentum_buffer[i] = m;
    master[i] -= learning_rate * m;
  }
}

double reference::sum_of_squares(const float* values, std::int64_t n) {
  std::array<double, 8> partial{};
  for (std::int64_t i = 0; i < n; ++i) partial[i % 8] += double{values[i]} * double{values[i]};
  double sum = 0;
  for (const double p : partial) sum += p;
  return sum;
}

}  // namespace moesaic::kernels
