// model_config.h: the shape of a model, and what its parameters are called. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "moesaic/core/dtype.h"
#include "moesaic/routing/gate.h"

namespace moesaic {

enum class Activation { kSwiGlu, kRelu };

struct MoeConfig {
  GateOptions gate;
  std::int64_t d_expert = 256;
  std::int64_t num_shared_experts =
      0;  // one dense feed-forward of width num_shared_experts * d_shared, on every token
  std::int64_t d_shared = 256;
  double balance_loss = 0.01;
  BalanceScope balance_scope = BalanceScope::kGlobal;
  std::string balance_convention =
      "one";  // "one": 1.0 at perfect balance; "hf": layers concatenated, about k
  double z_loss = 0.001;
  double jitter = 0.0;  // router input times U(1-jitter, 1+jitter), training only
};

struct ModelConfig {
  std::int64_t vocab_size = 256;
  std::int64_t num_layers = 4;
  std::int64_t d_model = 128;
  std::int64_t num_heads = 4;
  std::int64_t max_seq_len = 128;
  std::int64_t num_dense_layers = 0;  // the first ones have a dense feed-forward of width d_ff
  std::int64_t d_ff = 512;
  Activation activation = Activation::kSwiGlu;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  bool qk_norm = true;
  double clip_qkv = 0.0;  // 0 = off
  bool tie_embeddings = false;
  double init_std = 0.02;
  MoeConfig moe;
  std::map<std::int64_t, MoeConfig> own_moe;  // of layers that have another gate, or another of its options
};

// That of layer `layer`. Experts have one number and one width in all layers.
const MoeConfig& moe_of(const ModelConfig& config, std::int64_t layer);

// Throws InvalidArgument naming the key, what was got and what is allowed.
void validate(const ModelConfig& config);

enum class Init { kNormal, kOnes, kZeros };

// One tensor under its global name (Hugging Face's OLMoE names).
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  Init init = Init::kNormal;
  double init_std = 0.02;
  bool decay = true;  // weight decay applies
  std::int64_t numel() const;
};

// What is gathered together. Dense: cut evenly over all ranks. Expert: tensors belong to experts; the owners
// of an expert hold it. Expert e's tensors are tensors[e*per_expert .. (e+1)*per_expert).
enum class UnitKind { kDense, kExpert };
struct UnitSpec {
  std::string name;
  UnitKind kind = UnitKind::kDense;
  bool keep_fp32 = false;  // the router: fp32 whatever train.dtype is
  int layer = -1;          // -1: embedding, head
  std::int64_t num_experts = 0;
  std::vector<TensorSpec> tensors;
  std::int64_t per_expert() const {
    return num_experts == 0 ? 0 : std::int64_t(tensors.size()) / num_experts;
  }
};

// Every unit of the model, in forward order: embed; per layer attention, router, gate_up, down (or mlp),
// shared; head.
std::vector<UnitSpec> unit_specs(const ModelConfig& config);

}  // namespace moesaic
