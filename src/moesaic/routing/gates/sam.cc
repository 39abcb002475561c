// sam: the group of experts with the largest sum of probabilities, and in it the k largest, so that a token's
// experts sit together. A loss pulls down experts of other groups that beat the k-th chosen.
// "Switch and mixture", Jiang et al. 2021 (arXiv 2110.07431).
#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/kernels/top_k.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

std::int64_t group_size(const GateOptions& options) { return options.num_experts / options.num_groups; }

void check(const GateOptions& options) {
  require(options.top_k <= group_size(options),
          "gate: top_k is {} with the sam gate, expected at most {}, the experts of one of num_groups ({})",
          options.top_k, group_size(options), options.num_groups);
  require(options.alignment_loss >= 0.0, "gate: alignment_loss is {}, expected 0 or more",
          options.alignment_loss);
}

void choose_in_best_group(const GateOptions& options, const GateInput& input, std::span<std::int32_t> ids) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto k = static_cast<std::size_t>(options.top_k);
  const auto width = static_cast<std::size_t>(group_size(options));
  const std::vector<float> p = softmax_rows(input.logits, options.num_experts);
  std::vector<float> best(k);
  for (std::size_t t = 0; t * k < ids.size(); ++t) {
    std::size_t group = 0;
    float most = -1.0f;
    for (std::size_t begin = 0; begin < num_experts; begin += width) {
      float sum = 0.0f;
      for (std::size_t e = begin; e < begin + width; ++e) sum += p[t * num_experts + e];
      if (sum > most) {
        most = sum;
        group = begin;
      }
    }
    std::int32_t* const row = ids.data() + t * k;
    // By logits: probabilities far apart would tie at 0.
    kernels::top_k(input.logits.data() + t * num_experts + group, 1, static_cast<std::int64_t>(width),
                   options.top_k, row, best.data());
    for (std::size_t i = 0; i < k; ++i) row[i] += static_cast<std::int32_t>(group);
  }
}

// Sum over tokens of sum over experts j outside the group of max(0, p_j - p of the k-th chosen).
double alignment(const GateOptions& options, std::span<const float> p, const Choices& choices,
                 std::span<float> derivative) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto k = static_cast<std::size_t>(choices.num_choices);
  const auto width = static_cast<std::size_t>(group_size(options));
  std::ranges::fill(derivative, 0.0f);
  double sum = 0.0;
  for (std::size_t t = 0; t < choices.valid.size(); ++t) {
    if (!choices.valid[t]) continue;
    const auto last = static_cast<std::size_t>(choices.expert_ids[t * k + k - 1]);
    const auto row = p.subspan(t * num_experts, num_experts);
    const auto slope = derivative.subspan(t * num_experts, num_experts);
    for (std::size_t j = 0; j < num_experts; ++j) {
      if (j / width == last / width || row[j] <= row[last]) continue;
      sum += static_cast<double>(row[j]) - row[last];
      slope[j] += 1.0f;
      slope[last] -= 1.0f;
    }
  }
  return sum;
}

}  // namespace

extern const Gate kSamGate;
const Gate kSamGate{
    .name = "sam",
    .own_options = {"num_groups", "alignment_loss"},
    .normalises = true,
    .check = check,
    .choose = choose_in_best_group,
    .weighing = [](const GateOptions& options) { return Weighing{.normalise = normalise_of(options)}; },
    .balance =
        [](const GateOptions& options) {
          return Balance{Balance::Of::kAllChoices,
                         static_cast<double>(options.num_experts) / static_cast<double>(options.top_k)};
        },
    .token_loss = alignment,
    .token_loss_coefficient = &GateOptions::alignment_loss,
};

}  // namespace moesaic
