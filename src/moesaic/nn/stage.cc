#include "moesaic/nn/stage.h"

#include <functional>

#include "moesaic/core/error.h"
#include "moesaic/nn/attention.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/embedding.h"
#include "moesaic/nn/feed_forward.h"
#include "moesaic/nn/moe_experts.h"
#include "moesaic/nn/products.h"
#include "moesaic/nn/router.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void require_units(const StageSpec& stage, std::span<const UnitTensors> units) {
  require(units.size() == stage.units.size(), "stage of layer {}: expected {} units, got {}", stage.layer,
          stage.units.size(), units.size());
}

void require_tensors(const char* unit, const UnitTensors& tensors, std::size_t expected) {
  require(tensors.size() == expected, "{} unit: expected {} tensors, got {}", unit, expected, tensors.size());
}

// x [B,S,D], already normed.
StageOutput moe_feed_forward(const ModelConfig& config, int layer, std::span<const UnitTensors> units,
                             const at::Tensor& x, StepContext& context) {
  const auto l = static_cast<std::size_t>(layer);
  require(l < context.routes.size() && l < context.stats.size(),
          "layer {}: the step context has {} routes and {} stats, expected {} of each", layer,
          context.routes.size(), context.stats.size(), config.num_layers);
  const MoeConfig& moe = moe_of(config, layer);
  const bool has_router = gate_named(moe.gate.name).has_router;
  if (has_router) require_tensors("router", units[0], 1);
  const at::Tensor router = has_router ? units[0][0] : at::Tensor();
  units = units.subspan(has_router ? 1 : 0);
  require_tensors("gate_up", units[0], 1);
  require_tensors("down", units[1], 1);
  const at::Tensor tokens = x.reshape({x.size(0) * x.size(1), x.size(2)});
  const Routing routing = route(config, layer, tokens, router, x.size(1), context);
  at::Tensor shared;
  std::function<void()> run_shared;
  if (moe.num_shared_experts > 0) {
    run_shared = [&] {
      shared = feed_forward(config, moe.num_shared_experts * moe.d_shared, units[2], tokens);
    };
  }
  at::Tensor y = moe_experts(context.routes[l], config.activation, routing.plan, tokens, routing.weights,
                             units[0][0], units[1][0], &context.stats[l].route, run_shared);
  if (shared.defined()) y = y + shared;
  return {y.view(x.sizes()), routing.auxiliary};
}

StageOutput run_layer(const ModelConfig& config, const StageSpec& stage, std::span<const UnitTensors> units,
                      const at::Tensor& x, StepContext& context) {
  const AttentionWeights weights = attention_weights(config, units[0]);
  const at::Tensor input = rms_norm(x, weights.input_norm, config.norm_eps);
  const at::Tensor h =
      x + (context.cache ? cached_attention(config, weights, input, stage.layer, *context.cache)
                         : attention(config, weights, input));
  const at::Tensor normed = rms_norm(h, weights.post_norm, config.norm_eps);
  if (stage.layer < config.num_dense_layers) {
    return {h + feed_forward(config, config.d_ff, units[1], normed), {}};
  }
  StageOutput output = moe_feed_forward(config, stage.layer, units.subspan(1), normed, context);
  output.value = h + output.value;
  return output;
}

struct Head {
  at::Tensor hidden;  // normed, [B,S,D]
  at::Tensor weight;  // [V,D]
};

Head run_head(const ModelConfig& config, const StageSpec& stage, std::span<const UnitTensors> units,
              const at::Tensor& hidden) {
  require(stage.kind == StageKind::kHead, "expected the head's stage, got that of layer {}", stage.layer);
  require_units(stage, units);
  require_tensors("head", units[0], config.tie_embeddings ? 1 : 2);
  require_shape("hidden states", hidden, {hidden.size(0), hidden.size(1), config.d_model});
  const at::Tensor& weight = config.tie_embeddings ? units[1].at(0) : units[0][1];
  require_shape("lm_head", weight, {config.vocab_size, config.d_model});
  return {rms_norm(hidden, units[0][0], config.norm_eps), weight};
}

}  // namespace

std::vector<StageSpec> stage_specs(const ModelConfig& config) {
  std::vector<StageSpec> stages;
  const std::vector<UnitSpec> units = unit_specs(config);
  const int last = static_cast<int>(units.size()) - 1;
  stages.push_back({StageKind::kEmbed, -1, {0}});
  for (int unit = 1; unit < last; ++unit) {
    const int layer = units[static_cast<std::size_t>(unit)].layer;
    if (stages.back().layer != layer) stages.push_back({StageKind::kLayer, layer, {}});
    stages.back().units.push_back(unit);
  }
  stages.push_back({StageKind::kHead, -1, {last}});
  if (config.tie_embeddings) stages.back().units.push_back(0);
  return stages;
}

StageOutput run_stage(const ModelConfig& config, const StageSpec& stage, std::span<const UnitTensors> units,
                      const at::Tensor& input, StepContext& context) {
  require_units(stage, units);
  if (stage.kind == StageKind::kEmbed) {
    require_tensors("embed", units[0], 1);
    require(input.dim() == 2, "token ids: expected [sequences, positions], got {} dimensions", input.dim());
    require_shape("embed_tokens", units[0][0], {config.vocab_size, config.d_model});
    const at::Tensor ids = input.to(at::kLong).contiguous();
    context.token_ids.assign(ids.const_data_ptr<std::int64_t>(),
                             ids.const_data_ptr<std::int64_t>() + ids.numel());
    return {embed(units[0][0], input), {}};
  }
  require(input.dim() == 3, "hidden states: expected [sequences, positions, d_model], got {} dimensions",
          input.dim());
  if (stage.kind == StageKind::kHead) {
    const Head head = run_head(config, stage, units, input);
    return {project(head.hidden, head.weight), {}};
  }
  require_shape("hidden states", input, {input.size(0), input.size(1), config.d_model});
  return run_layer(config, stage, units, input, context);
}

StageOutput run_head_with_loss(const ModelConfig& config, const StageSpec& stage,
                               std::span<const UnitTensors> units, const at::Tensor& hidden,
                               const at::Tensor& targets, StepContext& context) {
  require(hidden.dim() == 3, "hidden states: expected [sequences, positions, d_model], got {} dimensions",
          hidden.dim());
  const Head head = run_head(config, stage, units, hidden);
  require_shape("targets", targets, {hidden.size(0), hidden.size(1)});
  const std::int64_t num_tokens = hidden.size(0) * hidden.size(1);
  return {cross_entropy(head.hidden.reshape({num_tokens, config.d_model}), head.weight,
                        targets.reshape({num_tokens}), context.step_targets),
          {}};
}

}  // namespace moesaic
