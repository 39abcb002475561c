// gshard: the two experts with the largest logits; the second may be left out at random, the less it weighs
// the likelier. Lepikhin et al. 2020 (arXiv 2006.16668).
#include <cmath>

#include "moesaic/core/rng.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

// Of the two: p2 / (p1 + p2).
float second_weight(float first_logit, float second_logit) {
  const float ratio = std::exp(second_logit - first_logit);
  return ratio / (1.0f + ratio);
}

void leave_out_seconds(const GateOptions& options, const GateInput& input, std::span<std::int32_t> ids) {
  if (!options.random_second) return;
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const std::uint64_t key = random_key(input.seed, "gshard second choice");
  for (std::size_t t = 0; t < ids.size() / 2; ++t) {
    if (ids[2 * t] < 0) continue;
    const auto h = input.logits.subspan(t * num_experts, num_experts);
    const float weight =
        second_weight(h[static_cast<std::size_t>(ids[2 * t])], h[static_cast<std::size_t>(ids[2 * t + 1])]);
    const auto token = static_cast<std::uint64_t>(input.first_token) + t;
    if (2.0f * weight <= random_uniform(key, token, input.lane)) ids[2 * t + 1] = -1;
  }
}

}  // namespace

extern const Gate kGShardGate;
const Gate kGShardGate{
    .name = "gshard",
    .top_k = 2,
    .own_options = {"random_second"},
    .normalises = true,
    .paper_normalise = Normalise::kBeforeDrop,
    .choose = [](const GateOptions& options, const GateInput& input,
                 std::span<std::int32_t> ids) { choose_largest(options, input.logits, ids); },
    .leave_out = leave_out_seconds,
    .weighing = [](const GateOptions& options) { return Weighing{.normalise = normalise_of(options)}; },
    .balance =
        [](const GateOptions& options) {
          return Balance{Balance::Of::kFirstChoices, static_cast<double>(options.num_experts)};
        },
};

}  // namespace moesaic
