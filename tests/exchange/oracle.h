// oracle.h: dispatch and combine as formulas over the whole group's tokens. Plain loops; no message, no index
// structure.
#pragma once

#include <optional>
#include <vector>

#include "moesaic/comm/topology.h"
#include "tests/exchange/cases.h"

namespace moesaic::exchange_checks {

inline float rounded(float value, DType dtype) {
  return dtype == DType::kBF16 ? to_float(to_bf16(value)) : value;
}

struct Slot {
  int expert;  // global id
  float weight;
};

// The slots of token t at the rank that owns them, ascending k.
inline std::vector<Slot> slots_at(const RoutingPlan& plan, const Placement& placement, std::int64_t t,
                                  int owner) {
  std::vector<Slot> slots;
  for (std::int64_t k = 0; k < plan.num_choices; ++k) {
    const auto i = static_cast<std::size_t>(t * plan.num_choices + k);
    const int e = plan.expert_ids[i];
    if (e >= 0 && placement.owner_in_group(e) == owner) slots.push_back({e, plan.weights[i]});
  }
  return slots;
}

// A stand-in for experts: F_e(x) = factor(e) * x. What an owner returns for one element of a received row.
using ExpertFactor = float (*)(int expert);
inline float owner_sum(float x, const std::vector<Slot>& slots, ExpertFactor factor, DType dtype) {
  float sum = 0.0f;
  for (const Slot& slot : slots) sum += slot.weight * (factor(slot.expert) * x);
  return rounded(sum, dtype);
}

// One row that a rank receives.
struct ReceivedRow {
  int source;
  std::int64_t token;
  std::vector<Slot> slots;
};

inline std::vector<ReceivedRow> received_rows(const Case& c, const Placement& placement, int rank,
                                              int world_size) {
  std::vector<ReceivedRow> rows;
  for (int source = 0; source < world_size; ++source) {
    const auto plan = plan_of(c, source, world_size);
    for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
      auto slots = slots_at(plan, placement, t, rank);
      if (!slots.empty()) rows.push_back({source, t, std::move(slots)});
    }
  }
  return rows;
}

// y [T,D] of one rank, in the order and with the rounding of contract 1.
inline std::vector<float> combined(const RoutingPlan& plan, const Placement& placement,
                                   const Topology& topology, const std::vector<float>& x, std::int64_t width,
                                   ExpertFactor factor, DType wire, DType result) {
  std::vector<float> y;
  for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
    for (std::int64_t d = 0; d < width; ++d) {
      std::optional<float> total;
      for (int node = 0; node < topology.num_nodes(); ++node) {
        std::optional<float> of_node;
        for (int rank = 0; rank < topology.world_size(); ++rank) {
          if (topology.node_of(rank) != node) continue;
          const auto slots = slots_at(plan, placement, t, rank);
          if (slots.empty()) continue;
          const float row = owner_sum(x[static_cast<std::size_t>(t * width + d)], slots, factor, wire);
          of_node = of_node ? *of_node + row : row;
        }
        if (!of_node) continue;
        total = total ? *total + rounded(*of_node, wire) : rounded(*of_node, wire);
      }
      y.push_back(rounded(total.value_or(0.0f), result));
    }
  }
  return y;
}

}  // namespace moesaic::exchange_checks
