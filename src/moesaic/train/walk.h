// walk.h: one micro-step through the stages: gather ahead, compute, free behind; backward the same in
// reverse.
//
// Collective: all ranks call with their own sequences (B may be 0) and contexts that agree on the global
// facts.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moesaic/nn/gate_states.h"
#include "moesaic/nn/stage.h"
#include "moesaic/shard/sharded_model.h"

namespace moesaic {

// A context with what does not change from step to step; training is off, the counts of tokens are 0.
StepContext base_context(const ShardedModel& model, const GateStates& gates);

// Layers whose activations are computed again in the backward pass instead of kept; empty = none of them.
// Such a layer keeps its input and its routing: the second forward follows the first one's plan, sends what
// dispatch and combine send, and gives the same gradients, to the bit.
using RecomputedLayers = std::vector<bool>;  // [num_layers]

// Forward and backward. tokens, targets [B,S] int64. Gradients land in the owners' shards: stored by the
// first micro-step of an optimizer step, added by the others. Returns this rank's share of the cross-entropy
// (already divided by context.step_targets).
double train_micro_step(ShardedModel& model, const at::Tensor& tokens, const at::Tensor& targets, bool first,
                        StepContext& context, const RecomputedLayers& recomputed = {});

// Forward only, without graph. Returns this rank's share of the cross-entropy.
double evaluate_micro_step(ShardedModel& model, const at::Tensor& tokens, const at::Tensor& targets,
                           StepContext& context);

// Forward only: logits [B,S,V]. With `rows` [N] int64, only of those of the B*S tokens: [1,N,V].
at::Tensor forward_logits(ShardedModel& model, const at::Tensor& tokens, StepContext& context,
                          const at::Tensor& rows = {});

}  // namespace moesaic
