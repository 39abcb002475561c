#include "moesaic/nn/gate_states.h"

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {

GateStates empty_gate_states(const ModelConfig& config) {
  GateStates states;
  states.layers.resize(static_cast<std::size_t>(config.num_layers));
  for (std::int64_t layer = config.num_dense_layers; layer < config.num_layers; ++layer) {
    const GateState state = state_of(moe_of(config, layer).gate, config.vocab_size);
    states.layers[static_cast<std::size_t>(layer)].assign(static_cast<std::size_t>(state.size), 0.0f);
  }
  return states;
}

GateStates first_gate_states(const ModelConfig& config, std::uint64_t seed,
                             std::span<const std::int64_t> token_counts) {
  GateStates states = empty_gate_states(config);
  for (std::int64_t layer = config.num_dense_layers; layer < config.num_layers; ++layer) {
    const StateSource source{seed, static_cast<int>(layer), config.vocab_size, token_counts};
    std::vector<float>& state = states.layers[static_cast<std::size_t>(layer)];
    if (!state.empty()) state = first_state(moe_of(config, layer).gate, source);
  }
  return states;
}

bool reads_token_counts(const ModelConfig& config) {
  for (std::int64_t layer = config.num_dense_layers; layer < config.num_layers; ++layer) {
    const GateOptions& options = moe_of(config, layer).gate;
    const Gate& gate = gate_named(options.name);
    if (gate.reads_token_counts && gate.reads_token_counts(options)) return true;
  }
  return false;
}

std::string gate_state_name(const ModelConfig& config, std::size_t layer) {
  const GateState state = state_of(moe_of(config, static_cast<std::int64_t>(layer)).gate, config.vocab_size);
  return fmt::format("model.layers.{}.mlp.gate.{}", layer, state.name);
}

void update_gate_states(const ModelConfig& config, GateStates& states,
                        const std::vector<std::vector<std::int64_t>>& chosen) {
  for (std::int64_t layer = config.num_dense_layers; layer < config.num_layers; ++layer) {
    const GateOptions& options = moe_of(config, layer).gate;
    const Gate& gate = gate_named(options.name);
    std::vector<float>& state = states.layers[static_cast<std::size_t>(layer)];
    if (!gate.update_state || state.empty()) continue;
    gate.update_state(options, state, chosen.at(static_cast<std::size_t>(layer - config.num_dense_layers)));
  }
}

}  // namespace moesaic
