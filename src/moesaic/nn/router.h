// router.h: from hidden states to a routing plan with differentiable weights.
//
// Collective over context.world: one all-gather of integers per call (what each rank's tokens chose), and
// scores where the gate or its capacity needs those of other ranks (gate_exchange.h); ranks without tokens
// take part. Router arithmetic is fp32 whatever the model's dtype. What a gate does: routing/gate_form.h.
//
//   T tokens of this rank, D width, E experts, K choices per token
//
// A layer whose decision was kept (StepContext::kept_routing) follows it: no message, no stats, the same
// plan; logits, weights and losses are formed again, so that gradients can reach the router.
//
// Errors: NonFinite, on every rank alike, naming layer, rank and token, where a logit is not finite and
// non_finite = "error". Under "drop" such tokens (and padding) get no expert, no loss, and pass no gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "moesaic/nn/stage.h"
#include "moesaic/routing/plan.h"

namespace moesaic {

struct Routing {
  RoutingPlan plan;      // its weights are those of `weights`
  at::Tensor weights;    // [T,K] fp32, 0 where the plan has no expert; gradients reach x and the router
  at::Tensor auxiliary;  // as StageOutput::auxiliary
};

// x [T,D] fp32 or bf16; router_weight [E,D] fp32, undefined for a gate without a router; T = sequences of
// sequence_length. Fills context.stats[layer]. Weights follow routing's weigh().
Routing route(const ModelConfig& config, int layer, const at::Tensor& x, const at::Tensor& router_weight,
              std::int64_t sequence_length, StepContext& context);

// The plan of a decision that StepContext::kept_routing holds.
const RoutingPlan& plan_of(const RoutingRecord& record);

}  // namespace moesaic
