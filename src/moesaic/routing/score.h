// score.h: from a logit to the score that chooses and weighs. Local; fp32.
#pragma once

#include <cmath>

namespace moesaic {

// 1 / (1 + exp(-x)), written so that neither end overflows: very negative logits keep a score above 0 for as
// long as fp32 can hold one.
inline float sigmoid(float x) {
  if (x >= 0.0f) return 1.0f / (1.0f + std::exp(-x));
  const float e = std::exp(x);
  return e / (1.0f + e);
}

}  // namespace moesaic
