// plan.h: the outcome of routing one micro-step's tokens of one rank.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic {

// T tokens of this rank, K choices per token, E experts.
struct RoutingPlan {
  std::int64_t num_tokens = 0;           // T
  std::int64_t num_choices = 0;          // K
  std::int64_t num_experts = 0;          // E
  std::vector<std::int32_t> expert_ids;  // [T,K]; -1 = dropped or absent
  std::vector<float> weights;            // [T,K]; 0 where expert_ids is -1 (but weight 0 is not absent)
  std::vector<std::int64_t> kept;        // [E] rows this rank sends to each expert
  std::int64_t dropped_capacity = 0;     // choices of this rank past an expert's capacity
  std::int64_t dropped_random = 0;       // choices of this rank left out at random; they took no slot
  std::int64_t dropped_non_finite = 0;   // choices of tokens with non-finite logits
  std::int64_t masked = 0;               // choices of padding tokens
};

}  // namespace moesaic
