#include <algorithm>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"
#include "moesaic/routing/score.h"

namespace moesaic {

std::vector<float> choice_scores(const GateOptions& options, std::span<const float> logits,
                                 const Choices& choices) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const Weighing weighing = gate_named(options.name).weighing(options);
  const bool sigmoids = weighing.score == ScoreKind::kSigmoid;
  const auto k = static_cast<std::size_t>(choices.num_choices);
  std::vector<float> finite(logits.begin(), logits.end());
  for (std::size_t t = 0; t < choices.valid.size(); ++t) {
    if (!choices.valid[t])
      std::fill_n(finite.begin() + static_cast<std::ptrdiff_t>(t * num_experts), num_experts, 0.0f);
  }
  const std::vector<float> p =
      sigmoids ? std::vector<float>() : softmax_rows(finite, options.num_experts, weighing.blocks);
  std::vector<float> scores(choices.expert_ids.size(), 0.0f);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (choices.expert_ids[i] < 0) continue;
    const std::size_t at = i / k * num_experts + static_cast<std::size_t>(choices.expert_ids[i]);
    scores[i] = sigmoids ? sigmoid(finite[at]) : p[at];
  }
  return scores;
}

std::vector<std::int64_t> slots_by_score(const GateOptions& options, const ScoredChoices& all, int rank) {
  const auto k = static_cast<std::size_t>(all.num_choices);
  require(all.expert_ids.size() == all.scores.size(), "gate: {} scores of {} choices, expected one each",
          all.scores.size(), all.expert_ids.size());
  const std::size_t num_tokens = all.expert_ids.size() / k;
  // Of each expert: who wants it, first choices first, tokens by (rank, position).
  std::vector<std::vector<std::size_t>> takers(static_cast<std::size_t>(options.num_experts));
  for (std::size_t choice = 0; choice < k; ++choice) {
    for (std::size_t t = 0; t < num_tokens; ++t) {
      const std::size_t i = t * k + choice;
      if (all.expert_ids[i] >= 0) takers[static_cast<std::size_t>(all.expert_ids[i])].push_back(i);
    }
  }
  std::vector<std::int64_t> slots(all.expert_ids.size(), -1);
  for (auto& of_expert : takers) {
    std::stable_sort(of_expert.begin(), of_expert.end(),
                     [&](std::size_t a, std::size_t b) { return all.scores[a] > all.scores[b]; });
    for (std::size_t slot = 0; slot < of_expert.size(); ++slot) {
      slots[of_expert[slot]] = static_cast<std::int64_t>(slot);
    }
  }
  const auto before = all.tokens_of_rank.begin() + rank;
  const std::int64_t first = std::accumulate(all.tokens_of_rank.begin(), before, std::int64_t{0});
  const auto begin = slots.begin() + first * all.num_choices;
  return {begin, begin + *before * all.num_choices};
}

}  // namespace moesaic
