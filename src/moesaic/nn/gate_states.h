// gate_states.h: what gates keep beside a model's weights: biases, tables, and how far training has come. No
// torch.
//
// Local. Saved in checkpoints under "model.layers.N.mlp.gate.<name>".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moesaic/nn/model_config.h"

namespace moesaic {

struct GateStates {
  std::int64_t step = 0;                   // optimizer steps made: temperatures follow it
  std::vector<std::vector<float>> layers;  // [num_layers], empty where a layer's gate keeps nothing
};

// As large as they are, all zero: to be read from a checkpoint.
GateStates empty_gate_states(const ModelConfig& config);

// What training starts from. token_counts [V]: how often the training data has each token; only read where
// reads_token_counts().
GateStates first_gate_states(const ModelConfig& config, std::uint64_t seed,
                             std::span<const std::int64_t> token_counts);
bool reads_token_counts(const ModelConfig& config);

// The tensor that holds a layer's state.
std::string gate_state_name(const ModelConfig& config, std::size_t layer);

// After an optimizer step that was not skipped. chosen [MoE layer][E]: choices of the global batch.
void update_gate_states(const ModelConfig& config, GateStates& states,
                        const std::vector<std::vector<std::int64_t>>& chosen);

}  // namespace moesaic
