#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate.h"
#include "moesaic/routing/score.h"

namespace moesaic {
namespace {

// w[e] = exp(h[e] - m) / sum, the sum over `over`, m its largest: some term is 1, so the sum is never 0.
struct Softmax {
  float largest, sum;
  Softmax(std::span<const float> h, std::span<const std::int32_t> over) : largest(-INFINITY), sum(0.0f) {
    for (const std::int32_t e : over) {
      if (e >= 0) largest = std::max(largest, h[static_cast<std::size_t>(e)]);
    }
    for (const std::int32_t e : over) {
      if (e >= 0) sum += std::exp(h[static_cast<std::size_t>(e)] - largest);
    }
  }
  float of(float h) const { return std::exp(h - largest) / sum; }
};

// s[e] / sum, the sum over `over`. No epsilon: scores of 1e-22 still add up to 1. All zero: equal weights.
struct SigmoidShare {
  float sum = 0.0f, count = 0.0f;
  SigmoidShare(std::span<const float> h, std::span<const std::int32_t> over) {
    for (const std::int32_t e : over) {
      if (e < 0) continue;
      sum += sigmoid(h[static_cast<std::size_t>(e)]);
      count += 1.0f;
    }
  }
  float of(float h) const { return sum > 0.0f ? sigmoid(h) / sum : 1.0f / count; }
};

}  // namespace

void weigh(const GateOptions& options, std::span<const float> logits, const Choices& choices,
           RoutingPlan& plan) {
  validate(options);
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto top_k = static_cast<std::size_t>(options.top_k);
  const auto num_tokens = static_cast<std::size_t>(choices.num_tokens);
  require(logits.size() == num_tokens * num_experts, "gate: {} logits, expected {} ({} tokens x {} experts)",
          logits.size(), num_tokens * num_experts, num_tokens, num_experts);
  require(choices.expert_ids.size() == num_tokens * top_k && plan.expert_ids.size() == num_tokens * top_k,
          "gate: {} choices and a plan of {}, expected {} ({} tokens x {})", choices.expert_ids.size(),
          plan.expert_ids.size(), num_tokens * top_k, num_tokens, top_k);
  plan.weights.assign(plan.expert_ids.size(), 0.0f);
  std::vector<std::int32_t> every(num_experts);
  for (std::size_t e = 0; e < num_experts; ++e) every[e] = static_cast<std::int32_t>(e);

  for (std::size_t t = 0; t < num_tokens; ++t) {
    const auto h = logits.subspan(t * num_experts, num_experts);
    const auto chosen = std::span(choices.expert_ids).subspan(t * top_k, top_k);
    const auto kept = std::span<const std::int32_t>(plan.expert_ids).subspan(t * top_k, top_k);
    if (std::all_of(kept.begin(), kept.end(), [](std::int32_t e) { return e < 0; })) continue;
    const bool normalised = options.normalise != Normalise::kNone;
    const auto over = options.normalise == Normalise::kBeforeDrop ? chosen : kept;
    const auto fill = [&](auto weight_of) {
      for (std::size_t k = 0; k < top_k; ++k) {
        if (kept[k] >= 0) plan.weights[t * top_k + k] = weight_of(h[static_cast<std::size_t>(kept[k])]);
      }
    };
    if (options.score == ScoreKind::kSoftmax) {
      const Softmax softmax(h, normalised ? over : std::span<const std::int32_t>(every));
      fill([&](float x) { return softmax.of(x); });
    } else if (normalised) {
      const SigmoidShare share(h, over);
      fill([&](float x) { return share.of(x) * static_cast<float>(options.route_scale); });
    } else {
      fill([](float x) { return sigmoid(x); });
    }
  }
}

}  // namespace moesaic
