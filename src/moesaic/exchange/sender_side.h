// sender_side.h: from a routing plan to what goes to which rank.
//
// Local; cost O(T*K). T tokens of this rank, K choices, X ranks of the exchange group, N nodes.
// InvalidArgument: shapes that do not fit, ids out of range, an expert twice in one token's list, weights
// that are not finite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/placement/placement.h"
#include "moesaic/routing/plan.h"

namespace moesaic {

// All lists by destination rank, then token, then ascending k.
struct SenderSide {
  std::vector<std::int64_t> rows, slots;   // [X]
  std::vector<std::int64_t> token;         // [sum rows]
  std::vector<std::int64_t> position;      // [sum slots] t*K + k
  std::vector<std::int32_t> slots_of_row;  // [sum rows]
  std::vector<std::int32_t> local_expert;  // [sum slots] index at the owner
  std::vector<float> weight;               // [sum slots]
};

SenderSide sender_side(const RoutingPlan& plan, const Placement& placement);

// What goes to other nodes, each token once. Lists by node, then token; the own node has none.
struct NodeSide {
  std::vector<std::int64_t> rows;   // [N]
  std::vector<std::int64_t> token;  // [sum rows]
  // mask_bytes(ranks of the node) per row: bit i % 8 of byte i / 8: the token is for the i-th rank of the
  // node.
  std::vector<std::byte> mask;
};
inline std::int64_t mask_bytes(std::int64_t num_ranks) { return (num_ranks + 7) / 8; }

// `rank`: the own place in the exchange group, whose topology this is.
NodeSide node_side(const SenderSide& side, const Topology& topology, int rank);

}  // namespace moesaic
