#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void check_choices(const GateOptions& options, const Choices& choices) {
  require(choices.num_choices >= 1 && (choices.rounds == 1 || choices.rounds == choices.num_choices),
          "gate: {} rounds of {} choices, expected 1 or as many rounds as choices", choices.rounds,
          choices.num_choices);
  const auto entries = static_cast<std::size_t>(choices.num_tokens * choices.num_choices);
  require(choices.expert_ids.size() == entries,
          "gate: choices hold {} expert ids, expected {} ({} tokens x {})", choices.expert_ids.size(),
          entries, choices.num_tokens, choices.num_choices);
  require(choices.before_leaving_out.empty() || choices.before_leaving_out.size() == entries,
          "gate: choices hold {} expert ids before some are left out, expected {}",
          choices.before_leaving_out.size(), entries);
  const auto counts = static_cast<std::size_t>(choices.rounds * options.num_experts);
  require(choices.counts.size() == counts,
          "gate: choices hold {} counts, expected {} ({} rounds x {} experts)", choices.counts.size(), counts,
          choices.rounds, options.num_experts);
}

// Counts from which slots start: every rank's, or this rank's alone.
struct Scope {
  std::span<const std::int64_t> counts;  // [ranks,rounds,E]
  int rank;                              // this rank's place in it
};

Scope scope_of(const GateOptions& options, const Choices& choices, std::span<const std::int64_t> gathered,
               int rank, int world_size) {
  require(world_size >= 1 && rank >= 0 && rank < world_size, "gate: rank {} of {}, expected 0..{}", rank,
          world_size, world_size - 1);
  const std::size_t part = choices.counts.size();
  require(gathered.size() == part * static_cast<std::size_t>(world_size),
          "gate: {} gathered counts, expected {} ({} ranks x {})", gathered.size(),
          part * static_cast<std::size_t>(world_size), world_size, part);
  const auto mine = gathered.subspan(static_cast<std::size_t>(rank) * part, part);
  require(std::equal(mine.begin(), mine.end(), choices.counts.begin()),
          "gate: rank {}'s part of the gathered counts is not what rank {} counted", rank, rank);
  if (options.capacity_scope == CapacityScope::kRank) return {mine, 0};
  return {gathered, rank};
}

// [rounds,E]: the slot of this rank's first token among all that choose e in that round.
std::vector<std::int64_t> first_slots(const GateOptions& options, std::int64_t num_rounds,
                                      const Scope& scope) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto rounds = static_cast<std::size_t>(num_rounds);
  const std::size_t num_ranks = scope.counts.size() / (rounds * num_experts);
  std::vector<std::int64_t> first(rounds * num_experts);
  for (std::size_t e = 0; e < num_experts; ++e) {
    std::int64_t taken = 0;
    for (std::size_t k = 0; k < rounds; ++k) {
      for (std::size_t r = 0; r < num_ranks; ++r) {
        if (r == static_cast<std::size_t>(scope.rank)) first[k * num_experts + e] = taken;
        taken += scope.counts[(r * rounds + k) * num_experts + e];
      }
    }
  }
  return first;
}

std::int64_t tokens_in(const GateOptions& options, std::int64_t rounds, const Scope& scope) {
  // Every valid token has exactly one first choice.
  const auto part = static_cast<std::size_t>(rounds * options.num_experts);
  std::int64_t tokens = 0;
  for (std::size_t begin = 0; begin < scope.counts.size(); begin += part) {
    for (std::size_t e = 0; e < static_cast<std::size_t>(options.num_experts); ++e) {
      tokens += scope.counts[begin + e];
    }
  }
  return tokens;
}

// Gates that look at tokens together have filled experts within their capacity already.
std::int64_t limit_of(const GateOptions& options, std::int64_t valid_tokens) {
  return gate_named(options.name).ordered ? expert_capacity(options, valid_tokens) : -1;
}

}  // namespace

std::vector<std::int64_t> slots_wanted(const GateOptions& options, const Choices& choices,
                                       std::span<const std::int64_t> gathered, int rank, int world_size) {
  check_choices(options, choices);
  auto next = first_slots(options, choices.rounds, scope_of(options, choices, gathered, rank, world_size));
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto k = static_cast<std::size_t>(choices.num_choices),
             rounds = static_cast<std::size_t>(choices.rounds);
  std::vector<std::int64_t> slots(choices.expert_ids.size(), -1);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int32_t e = choices.expert_ids[i];
    if (e >= 0) slots[i] = next[i % k % rounds * num_experts + static_cast<std::size_t>(e)]++;
  }
  return slots;
}

RoutingPlan admit(const GateOptions& options, const Choices& choices, std::span<const std::int64_t> gathered,
                  std::int64_t valid_tokens, int rank, int world_size, const ScoredChoices* scored) {
  validate(options);
  check_choices(options, choices);
  RoutingPlan plan;
  plan.num_tokens = choices.num_tokens;
  plan.num_choices = choices.num_choices;
  plan.num_experts = options.num_experts;
  plan.expert_ids = choices.expert_ids;
  plan.weights.assign(choices.expert_ids.size(), 0.0f);
  plan.kept.assign(static_cast<std::size_t>(options.num_experts), 0);
  plan.dropped_non_finite = choices.non_finite_tokens * options.top_k;
  plan.masked = choices.masked_tokens * options.top_k;
  for (std::size_t i = 0; i < choices.before_leaving_out.size(); ++i) {
    if (choices.before_leaving_out[i] >= 0 && choices.expert_ids[i] < 0) ++plan.dropped_random;
  }

  if (const std::int64_t capacity = limit_of(options, valid_tokens); capacity >= 0) {
    const std::int64_t counted =
        tokens_in(options, choices.rounds, scope_of(options, choices, gathered, rank, world_size));
    require(valid_tokens == counted, "gate: capacity for {} valid tokens, but the counts are of {}",
            valid_tokens, counted);
    const bool by_score = options.priority == Priority::kScore;
    require(!by_score || scored != nullptr,
            "gate: priority is score, but the scores of other ranks are not given");
    const int place = options.capacity_scope == CapacityScope::kRank ? 0 : rank;
    const auto slots = by_score ? slots_by_score(options, *scored, place)
                                : slots_wanted(options, choices, gathered, rank, world_size);
    require(slots.size() == choices.expert_ids.size(), "gate: scores of {} choices, expected {}",
            slots.size(), choices.expert_ids.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] < capacity) continue;
      plan.expert_ids[i] = -1;
      ++plan.dropped_capacity;
    }
  }
  for (const std::int32_t e : plan.expert_ids) {
    if (e >= 0) ++plan.kept[static_cast<std::size_t>(e)];
  }
  return plan;
}

}  // namespace moesaic
