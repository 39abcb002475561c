#include "moesaic/nn/model_config.h"

#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void require_positive(const char* key, std::int64_t value) {
  require(value >= 1, "{} must be at least 1, got {}", key, value);
}

void require_not_negative(const char* key, double value) {
  require(std::isfinite(value) && value >= 0.0, "{} must be finite and at least 0, got {}", key, value);
}

TensorSpec matrix(std::string name, std::int64_t rows, std::int64_t columns, double init_std) {
  return {.name = std::move(name), .shape = {rows, columns}, .init_std = init_std};
}

TensorSpec norm(std::string name, std::int64_t width) {
  return {.name = std::move(name), .shape = {width}, .init = Init::kOnes, .decay = false};
}

// One feed-forward's input matrices (gate then up, or up alone for ReLU).
void append_in(std::vector<TensorSpec>& tensors, const ModelConfig& config, const std::string& prefix,
               std::int64_t width) {
  if (config.activation == Activation::kSwiGlu) {
    tensors.push_back(matrix(prefix + "gate_proj.weight", width, config.d_model, config.init_std));
  }
  tensors.push_back(matrix(prefix + "up_proj.weight", width, config.d_model, config.init_std));
}

void append_out(std::vector<TensorSpec>& tensors, const ModelConfig& config, const std::string& prefix,
                std::int64_t width) {
  tensors.push_back(matrix(prefix + "down_proj.weight", config.d_model, width, config.init_std));
}

UnitSpec dense_unit(std::string name, int layer) {
  UnitSpec unit;
  unit.name = std::move(name);
  unit.layer = layer;
  return unit;
}

UnitSpec feed_forward_unit(const ModelConfig& config, std::string name, int layer, const std::string& prefix,
                           std::int64_t width) {
  UnitSpec unit = dense_unit(std::move(name), layer);
  append_in(unit.tensors, config, prefix, width);
  append_out(unit.tensors, config, prefix, width);
  return unit;
}

UnitSpec attention_unit(const ModelConfig& config, int layer, const std::string& unit_name,
                        const std::string& prefix) {
  const std::int64_t d = config.d_model;
  UnitSpec unit = dense_unit(unit_name, layer);
  unit.tensors.push_back(norm(prefix + "input_layernorm.weight", d));
  for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    unit.tensors.push_back(matrix(prefix + "self_attn." + projection + ".weight", d, d, config.init_std));
  }
  if (config.qk_norm) {
    unit.tensors.push_back(norm(prefix + "self_attn.q_norm.weight", d));
    unit.tensors.push_back(norm(prefix + "self_attn.k_norm.weight", d));
  }
  unit.tensors.push_back(norm(prefix + "post_attention_layernorm.weight", d));
  return unit;
}

void append_moe_units(std::vector<UnitSpec>& units, const ModelConfig& config, int layer,
                      const std::string& unit_prefix, const std::string& prefix) {
  const MoeConfig& moe = moe_of(config, layer);
  if (gate_named(moe.gate.name).has_router) {
    UnitSpec router = dense_unit(unit_prefix + "router", layer);
    router.keep_fp32 = true;
    router.tensors.push_back(
        matrix(prefix + "gate.weight", moe.gate.num_experts, config.d_model, config.init_std));
    units.push_back(std::move(router));
  }

  UnitSpec in = dense_unit(unit_prefix + "gate_up", layer);
  in.kind = UnitKind::kExpert;
  in.num_experts = moe.gate.num_experts;
  UnitSpec out = in;
  out.name = unit_prefix + "down";
  for (std::int64_t e = 0; e < moe.gate.num_experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", prefix, e);
    append_in(in.tensors, config, expert, moe.d_expert);
    append_out(out.tensors, config, expert, moe.d_expert);
  }
  units.push_back(std::move(in));
  units.push_back(std::move(out));
  if (moe.num_shared_experts > 0) {
    units.push_back(feed_forward_unit(config, unit_prefix + "shared", layer, prefix + "shared_experts.",
                                      moe.num_shared_experts * moe.d_shared));
  }
}

void validate(const MoeConfig& moe) {
  moesaic::validate(moe.gate);
  require_positive("moe.d_expert", moe.d_expert);
  require(moe.num_shared_experts >= 0, "moe.num_shared_experts must be at least 0, got {}",
          moe.num_shared_experts);
  if (moe.num_shared_experts > 0) require_positive("moe.d_shared", moe.d_shared);
  require_not_negative("moe.balance_loss", moe.balance_loss);
  require_not_negative("moe.z_loss", moe.z_loss);
  require(moe.jitter >= 0.0 && moe.jitter < 1.0, "moe.jitter must be in [0, 1), got {}", moe.jitter);
  require(moe.balance_convention == "one" || moe.balance_convention == "hf",
          "moe.balance_convention must be \"one\" or \"hf\", got \"{}\"", moe.balance_convention);
  if (moe.balance_convention == "one") return;
  require(
      moe.balance_scope == BalanceScope::kGlobal,
      "moe.balance_convention \"hf\" is defined over the whole batch: moe.balance_scope must be \"global\"");
  require(gate_named(moe.gate.name).balance(moe.gate).of == Balance::Of::kAllChoices,
          "moe.balance_convention \"hf\" counts all choices of every layer: moe.gate must be switch, top_k, "
          "k_top_1 or sam, got {}",
          moe.gate.name);
}

}  // namespace

void validate(const ModelConfig& config) {
  require_positive("model.vocab_size", config.vocab_size);
  require_positive("model.num_layers", config.num_layers);
  require_positive("model.d_model", config.d_model);
  require_positive("model.num_heads", config.num_heads);
  require_positive("model.max_seq_len", config.max_seq_len);
  require(config.d_model % (2 * config.num_heads) == 0,
          "model.d_model must be a multiple of 2 * num_heads = {} (rotary pairs), got {}",
          2 * config.num_heads, config.d_model);
  require(config.num_dense_layers >= 0 && config.num_dense_layers <= config.num_layers,
          "model.num_dense_layers must be in 0..num_layers = {}, got {}", config.num_layers,
          config.num_dense_layers);
  if (config.num_dense_layers > 0) require_positive("model.d_ff", config.d_ff);
  require(std::isfinite(config.rope_theta) && config.rope_theta > 0.0,
          "model.rope_theta must be above 0, got {}", config.rope_theta);
  require_not_negative("model.norm_eps", config.norm_eps);
  require_not_negative("model.clip_qkv", config.clip_qkv);
  require_not_negative("model.init_std", config.init_std);
  if (config.num_dense_layers == config.num_layers) return;

  validate(config.moe);
  for (const auto& [layer, moe] : config.own_moe) {
    require(layer >= config.num_dense_layers && layer < config.num_layers,
            "moe.per_layer names layer {}, expected {} to {}, which have experts", layer,
            config.num_dense_layers, config.num_layers - 1);
    try {
      validate(moe);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("layer {}: {}", layer, error.what()));
    }
    const bool same_experts =
        moe.gate.num_experts == config.moe.gate.num_experts && moe.d_expert == config.moe.d_expert &&
        moe.num_shared_experts == config.moe.num_shared_experts && moe.d_shared == config.moe.d_shared &&
        moe.balance_convention == config.moe.balance_convention;
    require(same_experts,
            "layer {}: num_experts, d_expert, num_shared_experts, d_shared and balance_convention are those "
            "of all layers, expected no others in moe.per_layer",
            layer);
  }
}

const MoeConfig& moe_of(const ModelConfig& config, std::int64_t layer) {
  const auto own = config.own_moe.find(layer);
  return own == config.own_moe.end() ? config.moe : own->second;
}

std::int64_t TensorSpec::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::vector<UnitSpec> unit_specs(const ModelConfig& config) {
  std::vector<UnitSpec> units;
  units.push_back(dense_unit("embed", -1));
  units.back().tensors.push_back(
      matrix("model.embed_tokens.weight", config.vocab_size, config.d_model, config.init_std));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string unit_prefix = fmt::format("layers.{}.", layer), prefix = "model." + unit_prefix;
    units.push_back(attention_unit(config, layer, unit_prefix + "attention", prefix));
    if (layer < config.num_dense_layers) {
      units.push_back(feed_forward_unit(config, unit_prefix + "mlp", layer, prefix + "mlp.", config.d_ff));
    } else {
      append_moe_units(units, config, layer, unit_prefix, prefix + "mlp.");
    }
  }
  units.push_back(dense_unit("head", -1));
  units.back().tensors.push_back(norm("model.norm.weight", config.d_model));
  if (!config.tie_embeddings) {
    units.back().tensors.push_back(
        matrix("lm_head.weight", config.vocab_size, config.d_model, config.init_std));
  }
  return units;
}

}  // namespace moesaic
