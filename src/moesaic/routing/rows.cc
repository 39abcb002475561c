#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/kernels/top_k.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {

std::size_t rows_of(const GateOptions& options, std::span<const float> values) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  require(values.size() % num_experts == 0, "gate: {} logits, expected a multiple of num_experts ({})",
          values.size(), num_experts);
  return values.size() / num_experts;
}

std::vector<float> softmax_rows(std::span<const float> logits, std::int64_t num_experts,
                                std::int64_t blocks) {
  const auto width = static_cast<std::size_t>(num_experts / blocks);
  std::vector<float> p(logits.size());
  for (std::size_t begin = 0; begin < logits.size(); begin += width) {
    const auto h = logits.subspan(begin, width);
    const float largest = *std::max_element(h.begin(), h.end());
    float sum = 0.0f;
    for (std::size_t e = 0; e < width; ++e) sum += p[begin + e] = std::exp(h[e] - largest);
    for (std::size_t e = 0; e < width; ++e) p[begin + e] /= sum;
  }
  return p;
}

void choose_largest(const GateOptions& options, std::span<const float> scores, std::span<std::int32_t> ids) {
  std::vector<float> best(ids.size());
  kernels::top_k(scores.data(), static_cast<std::int64_t>(rows_of(options, scores)), options.num_experts,
                 options.top_k, ids.data(), best.data());
}

}  // namespace moesaic
