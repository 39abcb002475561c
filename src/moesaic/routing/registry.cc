#include <fmt/ranges.h>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {

// Each in its file of gates/.
extern const Gate kSwitchGate;
extern const Gate kGShardGate;
extern const Gate kTopKGate;
extern const Gate kKTop1Gate;
extern const Gate kSamGate;
extern const Gate kBaseGate;
extern const Gate kHashGate;
extern const Gate kDenseToSparseGate;
extern const Gate kExpertChoiceGate;

namespace {

constexpr const Gate* kGates[] = {
    &kSwitchGate, &kGShardGate, &kTopKGate,          &kKTop1Gate,        &kSamGate,
    &kBaseGate,   &kHashGate,   &kDenseToSparseGate, &kExpertChoiceGate,
};

}  // namespace

const Gate& gate_named(std::string_view name) {
  for (const Gate* gate : kGates) {
    if (gate->name == name) return *gate;
  }
  throw InvalidArgument(fmt::format("gate: there is none named \"{}\", expected one of {}", name,
                                    fmt::join(gate_names(), ", ")));
}

std::vector<std::string> gate_names() {
  std::vector<std::string> names;
  for (const Gate* gate : kGates) names.emplace_back(gate->name);
  return names;
}

std::int64_t max_choices(const GateOptions& options) {
  const Gate& gate = gate_named(options.name);
  return gate.max_choices ? gate.max_choices(options) : options.top_k;
}

Normalise normalise_of(const GateOptions& options) {
  return options.normalise == Normalise::kPaper ? gate_named(options.name).paper_normalise
                                                : options.normalise;
}

GateState state_of(const GateOptions& options, std::int64_t vocab_size) {
  const Gate& gate = gate_named(options.name);
  return gate.state ? gate.state(options, vocab_size) : GateState{};
}

std::vector<float> first_state(const GateOptions& options, const StateSource& source) {
  const Gate& gate = gate_named(options.name);
  if (gate.first_state) return gate.first_state(options, source);
  return std::vector<float>(static_cast<std::size_t>(state_of(options, source.vocab_size).size), 0.0f);
}

Gathering gathering(const GateOptions& options, bool training) {
  const Gate& gate = gate_named(options.name);
  return gate.gathering ? gate.gathering(options, training) : Gathering::kNone;
}

GateOptions dropless(const GateOptions& options) {
  // What this gate does not read may mean something to the one that stands in for it.
  GateOptions alone = without_foreign_options(options);
  const Gate& gate = gate_named(options.name);
  if (!gate.alone.empty()) alone.name = gate.alone;
  alone.capacity_factor = 0.0;
  alone.priority = Priority::kOrder;
  return alone;
}

Assignment assign(const GateOptions& options, std::span<const float> logits) {
  validate(options);
  const Gate& gate = gate_named(options.name);
  require(gate.assign != nullptr, "gate: {} chooses for each token alone, there is nothing to assign",
          gate.name);
  rows_of(options, logits);
  return gate.assign(options, logits);
}

}  // namespace moesaic
