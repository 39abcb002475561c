#include "moesaic/exchange/sender_side.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

void check_shape(const RoutingPlan& plan, const Placement& placement) {
  require(plan.num_tokens >= 0 && plan.num_choices >= 1,
          "dispatch: a plan of {} tokens x {} choices, expected at least 0 x 1", plan.num_tokens,
          plan.num_choices);
  const auto entries = static_cast<std::size_t>(plan.num_tokens * plan.num_choices);
  require(plan.expert_ids.size() == entries && plan.weights.size() == entries,
          "dispatch: {} expert ids and {} weights, expected {} of each ({} tokens x {} choices)",
          plan.expert_ids.size(), plan.weights.size(), entries, plan.num_tokens, plan.num_choices);
  require(plan.num_experts == placement.num_experts(), "dispatch: a plan of {} experts, a placement of {}",
          plan.num_experts, placement.num_experts());
}

void check_choices(const RoutingPlan& plan) {
  // The token that last named each expert.
  std::vector<std::int64_t> named_by(static_cast<std::size_t>(plan.num_experts), -1);
  for (std::size_t i = 0; i < plan.expert_ids.size(); ++i) {
    const std::int32_t e = plan.expert_ids[i];
    if (e == -1) continue;
    const std::int64_t t = static_cast<std::int64_t>(i) / plan.num_choices;
    require(e >= 0 && e < plan.num_experts, "dispatch: token {} chose expert {}, expected -1..{}", t, e,
            plan.num_experts - 1);
    require(std::isfinite(plan.weights[i]),
            "dispatch: token {} gives expert {} the weight {}, expected a finite one", t, e, plan.weights[i]);
    auto& last = named_by[static_cast<std::size_t>(e)];
    require(last != t, "dispatch: token {} chose expert {} twice", t, e);
    last = t;
  }
}

// Calls visit(owner, t, i, first) for every choice i that has an expert; first: the owner was not met before
// by t.
template <typename Visit>
void for_each_choice(const RoutingPlan& plan, const Placement& placement, Visit visit) {
  std::vector<std::int64_t> met_by(static_cast<std::size_t>(placement.exchange_size()), -1);
  std::size_t i = 0;
  for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
    for (std::int64_t k = 0; k < plan.num_choices; ++k, ++i) {
      if (plan.expert_ids[i] < 0) continue;
      const auto owner = static_cast<std::size_t>(placement.owner_in_group(plan.expert_ids[i]));
      const bool first = met_by[owner] != t;
      met_by[owner] = t;
      visit(owner, t, i, first);
    }
  }
}

std::vector<std::size_t> begins(const std::vector<std::int64_t>& counts) {
  std::vector<std::size_t> result(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), result.begin(), std::size_t{0});
  return result;
}

}  // namespace

SenderSide sender_side(const RoutingPlan& plan, const Placement& placement) {
  check_shape(plan, placement);
  check_choices(plan);
  const auto group_size = static_cast<std::size_t>(placement.exchange_size());
  SenderSide side;
  side.rows.assign(group_size, 0);
  side.slots.assign(group_size, 0);
  for_each_choice(plan, placement, [&](std::size_t owner, std::int64_t, std::size_t, bool first) {
    side.rows[owner] += first;
    ++side.slots[owner];
  });

  const auto num_rows = std::accumulate(side.rows.begin(), side.rows.end(), std::int64_t{0});
  const auto num_slots = std::accumulate(side.slots.begin(), side.slots.end(), std::int64_t{0});
  side.token.resize(static_cast<std::size_t>(num_rows));
  side.slots_of_row.assign(static_cast<std::size_t>(num_rows), 0);
  side.position.resize(static_cast<std::size_t>(num_slots));
  side.local_expert.resize(static_cast<std::size_t>(num_slots));
  side.weight.resize(static_cast<std::size_t>(num_slots));
  auto next_row = begins(side.rows), next_slot = begins(side.slots);
  for_each_choice(plan, placement, [&](std::size_t owner, std::int64_t t, std::size_t i, bool first) {
    if (first) side.token[next_row[owner]++] = t;
    ++side.slots_of_row[next_row[owner] - 1];
    const std::size_t slot = next_slot[owner]++;
    side.position[slot] = static_cast<std::int64_t>(i);
    side.local_expert[slot] = placement.local_index(plan.expert_ids[i]);
    side.weight[slot] = plan.weights[i];
  });
  return side;
}

NodeSide node_side(const SenderSide& side, const Topology& topology, int rank) {
  const std::vector<std::size_t> begin = begins(side.rows);
  NodeSide result;
  result.rows.assign(static_cast<std::size_t>(topology.num_nodes()), 0);
  for (int node = 0; node < topology.num_nodes(); ++node) {
    if (node == topology.node_of(rank)) continue;
    // The tokens of the node's ranks ascend: the least that is left is next.
    std::vector<std::span<const std::int64_t>> left;
    for (const int to : topology.ranks_of(node)) {
      const auto at = static_cast<std::size_t>(to);
      left.push_back(std::span(side.token).subspan(begin[at], static_cast<std::size_t>(side.rows[at])));
    }
    const auto bytes = static_cast<std::size_t>(mask_bytes(std::ssize(left)));
    for (;;) {
      constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
      std::int64_t next = kNone;
      for (const auto& tokens : left) next = tokens.empty() ? next : std::min(next, tokens.front());
      if (next == kNone) break;
      result.token.push_back(next);
      result.mask.resize(result.mask.size() + bytes);
      std::byte* const mask = &result.mask[result.mask.size() - bytes];
      for (std::size_t i = 0; i < left.size(); ++i) {
        if (left[i].empty() || left[i].front() != next) continue;
        left[i] = left[i].subspan(1);
        mask[i / 8] |= std::byte{1} << (i % 8);
      }
      ++result.rows[static_cast<std::size_t>(node)];
    }
  }
  return result;
}

}  // namespace moesaic
