// expert_choice: every expert takes the tokens that give it the largest probability, as many as its capacity.
// Zhou et al. 2022 (arXiv 2202.09368).
#include <algorithm>
#include <numeric>

#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

// Ties go to the earliest token.
Assignment take_best(const GateOptions& options, std::span<const float> logits) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const std::size_t num_tokens = rows_of(options, logits);
  const auto capacity = expert_capacity(options, static_cast<std::int64_t>(num_tokens));
  const std::vector<float> p = softmax_rows(logits, options.num_experts);
  Assignment taken(num_experts);
  std::vector<std::int64_t> order(num_tokens);
  for (std::size_t e = 0; e < num_experts; ++e) {
    const auto score = [&](std::int64_t t) { return p[static_cast<std::size_t>(t) * num_experts + e]; };
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + capacity, order.end(),
                      [&](std::int64_t a, std::int64_t b) {
                        return score(a) > score(b) || (score(a) == score(b) && a < b);
                      });
    taken[e].assign(order.begin(), order.begin() + capacity);
  }
  return taken;
}

}  // namespace

extern const Gate kExpertChoiceGate;
const Gate kExpertChoiceGate{
    .name = "expert_choice",
    .capacity = Gate::Capacity::kRequired,
    .note =
        "lets experts look across the batch, at later tokens too: a language model learns to predict "
        "from what it will not have when it generates (each token then takes its top_k best experts)",
    .ordered = false,
    .gathering =
        [](const GateOptions& options, bool) {
          return options.capacity_scope == CapacityScope::kRank ? Gathering::kOwnRank : Gathering::kAllRanks;
        },
    .assign = take_best,
    .alone = "top_k",
    .weighing = [](const GateOptions&) { return Weighing{}; },
    .balance = [](const GateOptions&) { return Balance{}; },
};

}  // namespace moesaic
