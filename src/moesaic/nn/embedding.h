// embedding.h: both ends of the model: token ids to hidden states, and hidden states to a loss.
//
// Local. T tokens, V vocabulary, D width; fp32 or bf16 parameters, sums in fp32 or better.
#pragma once

#include <ATen/core/Tensor.h>

namespace moesaic {

// weight [V,D], ids int64 of any shape -> ids.shape + [D]. A token's gradient rows are added in fp32, in
// token order. InvalidArgument for ids outside 0..V-1.
at::Tensor embed(const at::Tensor& weight, const at::Tensor& ids);

// (sum over tokens with a target of -log softmax(hidden weight^T)[target]) / step_targets: fp32 scalar, nats.
// hidden [T,D], weight [V,D], targets [T] int64, -1 = no target. step_targets = 0 gives 0.
// Memory: the logits once, in the compute dtype, and only when a gradient is wanted; else a block of rows at
// a time. InvalidArgument for targets outside -1..V-1, or targets where step_targets is 0.
at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                         std::int64_t step_targets);

}  // namespace moesaic
