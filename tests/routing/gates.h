// gates.h: every registered gate with options that it takes, and one world of ranks that share its tokens.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "moesaic/core/rng.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic::testing {

using Ids = std::vector<std::int32_t>;

inline std::vector<float> random_logits(std::uint64_t seed, std::int64_t n, float scale = 1.0f) {
  std::vector<float> logits(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = scale * random_normal(random_key(seed, "logits"), i);
  }
  return logits;
}

inline std::vector<std::string> gates_where(bool (*holds)(const Gate&)) {
  std::vector<std::string> names = gate_names();
  std::erase_if(names, [&](const std::string& name) { return !holds(gate_named(name)); });
  return names;
}
inline bool has_router(const Gate& gate) { return gate.has_router; }
// Whether a token's experts do not depend on the rank that holds it.
inline bool any_layout(const Gate& gate) { return gate.name != "base"; }
// Whether scores may order its choices.
inline bool takes_priority(const Gate& gate) { return gate.ordered && gate.has_router; }

// Of 8 experts, with capacity where the gate has one.
inline GateOptions options_for(const std::string& name) {
  const Gate& gate = gate_named(name);
  GateOptions options;
  options.name = name;
  options.top_k = gate.top_k == 0 ? 2 : gate.top_k;
  if (gate.capacity != Gate::Capacity::kNone) options.capacity_factor = 0.8;
  if (name == "sam") options.num_groups = 2;
  options.random_second = name == "gshard";
  if (name == "dense_to_sparse") options.threshold = 0.1;
  return options;
}

// Tokens 0..T of all ranks: ids, and a table where the gate has one.
struct Tokens {
  GateOptions options;
  std::vector<float> logits;  // [T,E]
  std::vector<std::uint8_t> mask;
  std::vector<std::int64_t> ids;
  std::vector<float> state;

  Tokens(const GateOptions& gate_options, std::int64_t num_tokens)
      : options(gate_options),
        logits(random_logits(3, num_tokens * options.num_experts)),
        mask(static_cast<std::size_t>(num_tokens), 1) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      ids.push_back(static_cast<std::int64_t>(random_bits(5, static_cast<std::uint64_t>(t)) % 20));
    }
    const std::vector<std::int64_t> counts(20, 1);
    state = first_state(options, {.seed = 1, .vocab_size = 20, .token_counts = counts});
    mask[4] = 0;
  }
  // What a rank with tokens begin..begin+count sees, in training.
  GateInput part(std::int64_t begin, std::int64_t count) const {
    const auto at = static_cast<std::size_t>(begin), n = static_cast<std::size_t>(count);
    const auto experts = static_cast<std::size_t>(options.num_experts);
    return {.logits = std::span(logits).subspan(at * experts, n * experts),
            .state = state,
            .mask = std::span(mask).subspan(at, n),
            .token_ids = std::span(ids).subspan(at, n),
            .training = true,
            .seed = 9,
            .lane = 2,
            .first_token = begin};
  }
};

// Routing of tokens spread over ranks, as nn does it, in one process.
struct Ranks {
  std::vector<Choices> choices;
  std::vector<std::int64_t> gathered;
  std::vector<RoutingPlan> plans;

  Ranks(const Tokens& tokens, const std::vector<std::int64_t>& split) {
    const GateOptions& options = tokens.options;
    const bool together = gathering(options, true) != Gathering::kNone;
    std::vector<ValidTokens> valid;
    std::vector<float> all;
    std::int64_t begin = 0;
    for (const std::int64_t count : split) {
      const GateInput input = tokens.part(begin, count);
      begin += count;
      if (together) {
        valid.push_back(valid_tokens(options, input));
        all.insert(all.end(), valid.back().logits.begin(), valid.back().logits.end());
      } else {
        choices.push_back(choose(options, input));
      }
    }
    if (together) {
      const Assignment assignment = assign(options, all);
      std::vector<std::vector<std::int32_t>> experts_of(all.size() /
                                                        static_cast<std::size_t>(options.num_experts));
      for (std::size_t e = 0; e < assignment.size(); ++e) {
        for (const std::int64_t t : assignment[e]) {
          experts_of[static_cast<std::size_t>(t)].push_back(static_cast<std::int32_t>(e));
        }
      }
      std::size_t first = 0;
      for (ValidTokens& mine : valid) {
        const std::size_t n = mine.token.size();
        const auto from = experts_of.begin() + static_cast<std::ptrdiff_t>(first);
        choices.push_back(
            choose_together(options, std::move(mine), {from, from + static_cast<std::ptrdiff_t>(n)}));
        first += n;
      }
    }
    std::int64_t num_valid = 0;
    ScoredChoices scored;
    for (std::size_t r = 0; r < choices.size(); ++r) {
      gathered.insert(gathered.end(), choices[r].counts.begin(), choices[r].counts.end());
      num_valid += choices[r].valid_tokens;
      if (options.priority != Priority::kScore) continue;
      const std::int64_t from =
          std::accumulate(split.begin(), split.begin() + static_cast<std::ptrdiff_t>(r), std::int64_t{0});
      const auto scores = choice_scores(options, tokens.part(from, split[r]).logits, choices[r]);
      scored.num_choices = choices[r].num_choices;
      scored.tokens_of_rank.push_back(split[r]);
      scored.expert_ids.insert(scored.expert_ids.end(), choices[r].expert_ids.begin(),
                               choices[r].expert_ids.end());
      scored.scores.insert(scored.scores.end(), scores.begin(), scores.end());
    }
    for (std::size_t r = 0; r < choices.size(); ++r) {
      plans.push_back(admit(options, choices[r], gathered, num_valid, static_cast<int>(r),
                            static_cast<int>(choices.size()), &scored));
    }
  }

  // Experts kept of each token, of all ranks in order, ascending.
  std::vector<Ids> kept() const {
    std::vector<Ids> tokens;
    for (const RoutingPlan& plan : plans) {
      for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
        Ids ids;
        for (std::int64_t k = 0; k < plan.num_choices; ++k) {
          const std::int32_t e = plan.expert_ids[static_cast<std::size_t>(t * plan.num_choices + k)];
          if (e >= 0) ids.push_back(e);
        }
        std::sort(ids.begin(), ids.end());
        tokens.push_back(ids);
      }
    }
    return tokens;
  }
};

inline const std::vector<std::vector<std::int64_t>> kGateSplits{{40}, {13, 27}, {0, 40}, {10, 0, 7, 23}};

}  // namespace moesaic::testing
