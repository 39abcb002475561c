#include "moesaic/nn/attention.h"

#include "moesaic/core/error.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/kv_cache.h"
#include "moesaic/nn/products.h"

namespace moesaic {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(at::mean(x32 * x32, -1, /*keepdim=*/true) + eps);
  return weight * (x32 * scale).to(x.scalar_type());
}

Rotation rotation(const at::Tensor& positions, std::int64_t head_width, double theta) {
  const at::Tensor exponent = at::arange(0, head_width, 2, at::kFloat) / static_cast<double>(head_width);
  const at::Tensor frequency = 1.0 / at::pow(theta, exponent);
  const at::Tensor angle = positions.unsqueeze(-1).to(at::kFloat) * frequency;
  return {angle.cos(), angle.sin()};
}

at::Tensor rotary(const at::Tensor& x, const Rotation& rotation) {
  const std::int64_t half = x.size(-1) / 2;
  const auto& [cosine, sine] = rotation;
  const at::Tensor x32 = x.to(at::kFloat);
  const at::Tensor first = x32.narrow(-1, 0, half), second = x32.narrow(-1, half, half);
  return at::cat({first * cosine - second * sine, second * cosine + first * sine}, -1).to(x.scalar_type());
}

AttentionWeights attention_weights(const ModelConfig& config, std::span<const at::Tensor> unit) {
  const std::size_t expected = config.qk_norm ? 8 : 6;
  require(unit.size() == expected, "attention unit: expected {} tensors, got {}", expected, unit.size());
  AttentionWeights weights;
  std::size_t next = 0;
  const std::int64_t d = config.d_model;
  const auto take = [&](at::Tensor& target, const char* name, at::IntArrayRef shape) {
    target = unit[next++];
    require_shape(name, target, shape);
  };
  take(weights.input_norm, "input_layernorm", {d});
  take(weights.q, "q_proj", {d, d});
  take(weights.k, "k_proj", {d, d});
  take(weights.v, "v_proj", {d, d});
  take(weights.o, "o_proj", {d, d});
  if (config.qk_norm) {
    take(weights.q_norm, "q_norm", {d});
    take(weights.k_norm, "k_norm", {d});
  }
  take(weights.post_norm, "post_attention_layernorm", {d});
  return weights;
}

Heads project_heads(const ModelConfig& config, const AttentionWeights& weights, const at::Tensor& x,
                    const Rotation& rotation) {
  Heads heads{project(x, weights.q), project(x, weights.k), project(x, weights.v)};
  if (config.qk_norm) {
    heads.q = rms_norm(heads.q, weights.q_norm, config.norm_eps);
    heads.k = rms_norm(heads.k, weights.k_norm, config.norm_eps);
  }
  for (at::Tensor* t : {&heads.q, &heads.k, &heads.v}) {
    if (config.clip_qkv > 0.0) *t = at::clamp(*t, -config.clip_qkv, config.clip_qkv);
    *t = t->view({x.size(0), x.size(1), config.num_heads, config.d_model / config.num_heads}).transpose(1, 2);
  }
  heads.q = rotary(heads.q, rotation);
  heads.k = rotary(heads.k, rotation);
  return heads;
}

at::Tensor attention(const ModelConfig& config, const AttentionWeights& weights, const at::Tensor& x) {
  const std::int64_t num_positions = x.size(1);
  require(num_positions <= config.max_seq_len,
          "sequence of {} positions is longer than model.max_seq_len = {}", num_positions,
          config.max_seq_len);
  const Rotation turned =
      rotation(at::arange(num_positions, at::kLong), config.d_model / config.num_heads, config.rope_theta);
  const Heads heads = project_heads(config, weights, x, turned);
  const at::Tensor mixed = attend(heads.q, heads.k, heads.v, /*mask=*/{}, /*causal=*/true);
  return project(mixed.transpose(1, 2).reshape(x.sizes()), weights.o);
}

at::Tensor cached_attention(const ModelConfig& config, const AttentionWeights& weights, const at::Tensor& x,
                            int layer, KvCache& cache) {
  require_shape("new tokens of the key-value cache", x, {1, cache.num_tokens(), config.d_model});
  const Heads heads = project_heads(config, weights, x, cache.rotation());
  return project(cache.attend(layer, heads), weights.o);
}

}  // namespace moesaic
