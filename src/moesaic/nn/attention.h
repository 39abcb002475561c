// attention.h: RMSNorm, rotary positions and causal self-attention, in the order of Hugging Face's OLMoE.
//
// Local. B sequences of S positions, D width, H heads of width D/H. Parameters and hidden states are fp32 or
// bf16; norms and rotations compute in fp32 and round once. Every row depends only on itself and on earlier
// positions of its sequence: padding on the right changes nothing to its left. Any extent but D may be 0.
// Sources: Zhang & Sennrich 2019 (RMSNorm), Su et al. 2021 (RoPE), Muennighoff et al. 2024 (OLMoE).
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "moesaic/nn/model_config.h"

namespace moesaic {

class KvCache;  // kv_cache.h

// weight * (x / sqrt(mean(x^2) + eps)) over the last dimension.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// cos and sin of the angles position * theta^(-2i / (D/H)), i < D/2H: [S,D/2H] fp32 for positions [S] int64.
struct Rotation {
  at::Tensor cosine, sine;
};
Rotation rotation(const at::Tensor& positions, std::int64_t head_width, double theta);

// x [B,H,S,D/H]: pair (i, i + D/2H) of a head turns by angle i of its position.
at::Tensor rotary(const at::Tensor& x, const Rotation& rotation);

// The tensors of an attention unit, by name.
struct AttentionWeights {
  at::Tensor input_norm, q, k, v, o;
  at::Tensor q_norm, k_norm;  // undefined without model.qk_norm
  at::Tensor post_norm;
};
// Checks shapes; `unit` holds one tensor per TensorSpec of the unit.
AttentionWeights attention_weights(const ModelConfig& config, std::span<const at::Tensor> unit);

struct Heads {
  at::Tensor q, k, v;  // [B,H,S,D/H]
};
// Projection, q/k-norm over the whole width, clip, split into heads, rotation. x [B,S,D] is already normed.
Heads project_heads(const ModelConfig& config, const AttentionWeights& weights, const at::Tensor& x,
                    const Rotation& rotation);

// Causal attention over the S positions of x [B,S,D] (already normed), output projection included.
at::Tensor attention(const ModelConfig& config, const AttentionWeights& weights, const at::Tensor& x);

// The same for the new tokens x [1,T,D] of `cache`'s runs, each after what its sequence holds.
at::Tensor cached_attention(const ModelConfig& config, const AttentionWeights& weights, const at::Tensor& x,
                            int layer, KvCache& cache);

}  // namespace moesaic
