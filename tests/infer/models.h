// models.h: small models for tests of inference, and the rooms to run them in.
#pragma once

#include "moesaic/core/rng.h"
#include "moesaic/shard/sharded_model.h"
#include "moesaic/train/threads.h"
#include "moesaic/train/trainer.h"
#include "tests/comm/worlds.h"

namespace moesaic::testing {

inline ModelConfig model_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.d_model = 32;
  config.num_heads = 2;
  config.vocab_size = 40;
  config.max_seq_len = 12;
  config.init_std = 0.3;  // far from uniform logits: rounding changes no choice
  config.moe.d_expert = 16;
  config.moe.gate.num_experts = 4;
  return config;
}

using Modes = std::vector<ExpertsMode>;
inline const Modes kGather{ExpertsMode::kGather, ExpertsMode::kGather};
inline const Modes kExchange{ExpertsMode::kExchange, ExpertsMode::kExchange};
inline const Modes kMixed{ExpertsMode::kGather, ExpertsMode::kExchange};

// Runs body(model, gates) on every rank.
inline void with_model(const ModelConfig& config, int ranks, const Modes& modes, DType dtype,
                       const std::function<void(ShardedModel&, const GateStates&)>& body) {
  run_world(Topology::one_node(ranks), [&](Communicator& world) {
    limit_compute_threads(1);
    ShardedModel model(config, {modes, 0, dtype}, world);
    model.initialise(5);
    GateStates gates = empty_gate_states(config);
    for (auto& layer : gates.layers) {
      for (std::size_t e = 0; e < layer.size(); ++e) layer[e] = 0.1f * static_cast<float>(e % 3);
    }
    body(model, gates);
  });
}

}  // namespace moesaic::testing
