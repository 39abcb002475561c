// gate_formulas.h: a gate's weights and losses as differentiable functions of its logits.
//
// Local. They follow the rules of routing/gate_form.h; routing's weigh() is the oracle of the weights.
//   T tokens, E experts, K choices
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/nn/softmax_choice.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {

// Expert ids as a tensor [T,K] int64.
at::Tensor ids_tensor(const std::vector<std::int32_t>& ids, std::int64_t num_tokens,
                      std::int64_t num_choices);

// [T,K], 0 where the plan has no expert. Normalised sigmoid weights are formed from logarithms, so that they
// and their gradients stay finite and proportional where every chosen score is too small for fp32.
at::Tensor choice_weights(const Weighing& weighing, const at::Tensor& logits, const Choices& choices,
                          const RoutingPlan& plan);
// The same for a gate that chooses by softmax.
at::Tensor choice_weights(const Weighing& weighing, const SoftmaxChoice& chosen, const Choices& choices,
                          const RoutingPlan& plan);

// What losses call p, [T,E]: probabilities that add up to 1 over all experts, or over each block.
at::Tensor expert_probabilities(const Weighing& weighing, const at::Tensor& logits);

// [T,E]: 1 where the token chose the expert.
at::Tensor chosen_mask(const Choices& choices, std::int64_t num_experts);

// The gate's further loss, summed over this rank's tokens. p [T,E] fp32.
at::Tensor token_loss(const GateOptions& options, const Choices& choices, const at::Tensor& p);

}  // namespace moesaic
