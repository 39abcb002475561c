// top_k: the k experts with the largest logits (Shazeer et al. 2017, arXiv 1701.06538, without its noise), or
// of sigmoid(logit) + bias, also from a few of several groups (DeepSeek-V3, arXiv 2412.19437).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "moesaic/core/error.h"
#include "moesaic/kernels/top_k.h"
#include "moesaic/routing/gate_form.h"
#include "moesaic/routing/score.h"

namespace moesaic {
namespace {

bool sigmoids(const GateOptions& options) { return options.score == ScoreKind::kSigmoid; }

void check(const GateOptions& options) {
  require(options.num_groups == 1 || sigmoids(options),
          "gate: num_groups is {} with score softmax, expected 1: top_k limits groups with sigmoid scores",
          options.num_groups);
  const std::int64_t reachable = options.num_experts / options.num_groups * options.kept_groups;
  require(options.top_k <= reachable,
          "gate: top_k is {}, expected at most {}, the experts of kept_groups ({}) of num_groups ({})",
          options.top_k, reachable, options.kept_groups, options.num_groups);
}

// A group's score: the sum of its two largest.
float group_score(std::span<const float> scores) {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (const float s : scores) {
    if (s > best) {
      second = std::exchange(best, s);
    } else {
      second = std::max(second, s);
    }
  }
  return scores.size() == 1 ? best : best + second;
}

// Leaves the scores of the best groups; ties go to the lowest group.
void keep_groups(const GateOptions& options, std::span<float> scores) {
  const auto groups = static_cast<std::size_t>(options.num_groups);
  const std::size_t width = static_cast<std::size_t>(options.num_experts) / groups;
  std::vector<float> of_group(groups), best(static_cast<std::size_t>(options.kept_groups));
  std::vector<std::int32_t> kept(best.size());
  for (std::size_t begin = 0; begin < scores.size(); begin += groups * width) {
    for (std::size_t g = 0; g < groups; ++g) {
      of_group[g] = group_score(scores.subspan(begin + g * width, width));
    }
    kernels::top_k(of_group.data(), 1, options.num_groups, options.kept_groups, kept.data(), best.data());
    for (std::size_t g = 0; g < groups; ++g) {
      if (std::ranges::find(kept, static_cast<std::int32_t>(g)) != kept.end()) continue;
      std::ranges::fill(scores.subspan(begin + g * width, width), -std::numeric_limits<float>::infinity());
    }
  }
}

void choose_by_sigmoid(const GateOptions& options, const GateInput& input, std::span<std::int32_t> ids) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const std::span<const float> bias = input.state;
  require(bias.empty() || bias.size() == num_experts, "gate: bias of {} experts, expected {} (or none)",
          bias.size(), num_experts);
  for (std::size_t e = 0; e < bias.size(); ++e) {
    require(std::isfinite(bias[e]), "gate: the bias of expert {} is {}, expected a finite number", e,
            bias[e]);
  }
  std::vector<float> scores(input.logits.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const float s = sigmoid(input.logits[i]);
    scores[i] = bias.empty() ? s : s + bias[i % num_experts];
  }
  if (options.num_groups > 1) keep_groups(options, scores);
  choose_largest(options, scores, ids);
}

}  // namespace

extern const Gate kTopKGate;
const Gate kTopKGate{
    .name = "top_k",
    .own_options = {"score", "route_scale", "bias_balance", "bias_update_rate", "bias_centred", "num_groups",
                    "kept_groups"},
    .normalises = true,
    .check = check,
    .by_softmax = [](const GateOptions& options) { return !sigmoids(options); },
    .choose = choose_by_sigmoid,
    .weighing =
        [](const GateOptions& options) {
          return Weighing{
              .score = options.score, .normalise = normalise_of(options), .scale = options.route_scale};
        },
    .balance =
        [](const GateOptions& options) {
          return Balance{Balance::Of::kAllChoices,
                         static_cast<double>(options.num_experts) / static_cast<double>(options.top_k)};
        },
    .state =
        [](const GateOptions& options, std::int64_t) {
          return options.bias_balance ? GateState{"e_score_correction_bias", options.num_experts}
                                      : GateState{};
        },
    .update_state =
        [](const GateOptions& options, std::span<float> state, std::span<const std::int64_t> counts) {
          update_bias(state, counts, options.bias_update_rate, options.bias_centred);
        },
};

}  // namespace moesaic
