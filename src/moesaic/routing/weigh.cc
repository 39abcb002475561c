#include <algorithm>
#include <cmath>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"
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
  const Gate& gate = gate_named(options.name);
  const Weighing weighing = gate.weighing(options);
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto k = static_cast<std::size_t>(choices.num_choices);
  const auto num_tokens = static_cast<std::size_t>(choices.num_tokens);
  require(!gate.has_router || logits.size() == num_tokens * num_experts,
          "gate: {} logits, expected {} ({} tokens x {} experts)", logits.size(), num_tokens * num_experts,
          num_tokens, num_experts);
  const std::vector<std::int32_t>& before_drop = ids_before_drop(choices);
  require(before_drop.size() == num_tokens * k && plan.expert_ids.size() == num_tokens * k,
          "gate: {} choices and a plan of {}, expected {} ({} tokens x {})", before_drop.size(),
          plan.expert_ids.size(), num_tokens * k, num_tokens, k);
  plan.weights.assign(plan.expert_ids.size(), 0.0f);
  // The experts that share a softmax with e.
  const std::size_t width = num_experts / static_cast<std::size_t>(weighing.blocks);
  const auto block_of = [&](std::int32_t e) {
    std::vector<std::int32_t> block(width);
    std::iota(block.begin(), block.end(),
              e / static_cast<std::int32_t>(width) * static_cast<std::int32_t>(width));
    return block;
  };

  for (std::size_t t = 0; t < num_tokens; ++t) {
    const auto chosen = std::span(before_drop).subspan(t * k, k);
    const auto kept = std::span<const std::int32_t>(plan.expert_ids).subspan(t * k, k);
    const auto over = weighing.normalise == Normalise::kBeforeDrop ? chosen : kept;
    const bool normalised = weighing.normalise != Normalise::kNone;
    for (std::size_t i = 0; i < k; ++i) {
      if (kept[i] < 0) continue;
      float& weight = plan.weights[t * k + i];
      if (weighing.score == ScoreKind::kOne) {
        weight = 1.0f;
        continue;
      }
      const auto h = logits.subspan(t * num_experts, num_experts);
      const float x = h[static_cast<std::size_t>(kept[i])];
      if (weighing.score == ScoreKind::kSoftmax) {
        weight = (normalised ? Softmax(h, over) : Softmax(h, block_of(kept[i]))).of(x);
      } else if (normalised) {
        weight = SigmoidShare(h, over).of(x) * static_cast<float>(weighing.scale);
      } else {
        weight = sigmoid(x);
      }
    }
  }
}

}  // namespace moesaic
