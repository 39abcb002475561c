// sender_side.h: from a routing plan to what goes to which rank.
//
// Local; cost O(T*K). T tokens of this rank, K choices, X ranks of the exchange group. InvalidArgument:
// shapes that do not fit, ids out of range, an expert twice in one token's list, weights that are not finite.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace moesaic
