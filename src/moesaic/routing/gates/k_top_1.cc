// k_top_1: experts stand in k prototypes of E / k; the best of each is chosen, with a softmax of its own.
// M6-T, Yang et al. 2021 (arXiv 2105.15082).
#include "moesaic/core/error.h"
#include "moesaic/kernels/top_k.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void check(const GateOptions& options) {
  require(options.num_experts % options.top_k == 0,
          "gate: top_k is {} with the k_top_1 gate, expected a divisor of num_experts ({})", options.top_k,
          options.num_experts);
}

void choose_of_each(const GateOptions& options, const GateInput& input, std::span<std::int32_t> ids) {
  const std::int64_t width = options.num_experts / options.top_k;
  std::vector<float> best(ids.size());
  // [T,E] is [T*k,E/k].
  kernels::top_k(input.logits.data(), static_cast<std::int64_t>(ids.size()), width, 1, ids.data(),
                 best.data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto prototype = static_cast<std::int64_t>(i % static_cast<std::size_t>(options.top_k));
    ids[i] += static_cast<std::int32_t>(prototype * width);
  }
}

}  // namespace

extern const Gate kKTop1Gate;
const Gate kKTop1Gate{
    .name = "k_top_1",
    .check = check,
    .choose = choose_of_each,
    .weighing = [](const GateOptions& options) { return Weighing{.blocks = options.top_k}; },
    // The mean over prototypes of (E/k) sum P f.
    .balance =
        [](const GateOptions& options) {
          const auto k = static_cast<double>(options.top_k);
          return Balance{Balance::Of::kAllChoices, static_cast<double>(options.num_experts) / (k * k)};
        },
};

}  // namespace moesaic
