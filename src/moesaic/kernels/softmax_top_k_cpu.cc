#include <algorithm>
#include <cmath>
#include <vector>

#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/softmax_top_k.h"

namespace moesaic::kernels {

namespace {
constexpr std::int64_t kChains = 16;
}

void reference::softmax_top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                              const std::uint8_t* counted, const SoftmaxTopK& out) {
  reference::top_k(scores, rows, n, k, out.ids, out.values);
  std::vector<float> chains(static_cast<std::size_t>(kChains * n), 0.0f);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * n;
    const float largest = *std::max_element(row, row + n);
    float sum = 0.0f;
    for (std::int64_t j = 0; j < n; ++j) sum += std::exp(row[j] - largest);
    out.log_sum[r] = largest + std::log(sum);
    for (std::int64_t i = r * k; i < (r + 1) * k; ++i) {
      out.probabilities[i] = std::exp(out.values[i] - largest) / sum;
    }
    if (counted != nullptr && counted[r] == 0) continue;
    for (std::int64_t j = 0; j < n; ++j) chains[r % kChains * n + j] += std::exp(row[j] - largest) / sum;
  }
  if (out.sums == nullptr) return;
  for (std::int64_t j = 0; j < n; ++j) {
    out.sums[j] = 0.0f;
    for (std::int64_t c = 0; c < kChains; ++c) out.sums[j] += chains[c * n + j];
  }
}

void reference::softmax_top_k_backward(const float* scores, const float* log_sum, const std::int32_t* ids,
                                       std::int64_t rows, std::int64_t n, std::int64_t k,
                                       const std::uint8_t* counted, const SoftmaxTopKGradients& gradients,
                                       float* d_scores) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto p = [&](std::int64_t j) { return std::exp(scores[r * n + j] - log_sum[r]); };
    const float counts = counted == nullptr || counted[r] != 0 ? 1.0f : 0.0f;
    float mean = 0.0f;
    for (std::int64_t j = 0; j < n; ++j) mean += p(j) * gradients.sums[j];
    for (std::int64_t j = 0; j < n; ++j) {
      d_scores[r * n + j] = p(j) * (counts * (gradients.sums[j] - mean) + gradients.log_sum[r]);
    }
    for (std::int64_t i = r * k; i < (r + 1) * k; ++i) {
      if (ids[i] >= 0) d_scores[r * n + ids[i]] += gradients.values[i];
    }
  }
}

}  // namespace moesaic::kernels
