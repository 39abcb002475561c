// gate_form.h: what a gate is made of. A gate is one file in gates/ and one line in registry.cc.
//
// Local, torch-free. A function that is null is a part the gate does not have. Formulas that need gradients
// are given as rules (Weighing, Balance), which weigh() and nn read, or with their derivative (token_loss).
//
//   T tokens, E experts, K choices per token, V vocabulary
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "moesaic/routing/gate.h"

namespace moesaic {

// From logits to the weight of a choice.
struct Weighing {
  ScoreKind score = ScoreKind::kSoftmax;
  std::int64_t blocks = 1;                 // the softmax is over each of so many runs of E / blocks experts
  Normalise normalise = Normalise::kNone;  // never kPaper
  double scale = 1.0;                      // of normalised weights
};

// The balance loss, factor * sum_e f_e P_e: 1 at perfect balance. f is what was chosen, P the mean
// probability.
struct Balance {
  enum class Of {
    kNone,
    kFirstChoices,  // f: tokens whose first choice is e, per token
    kAllChoices,    // f: choices of e, per token
    kKeptMass       // f: e's share of the probability of the chosen, P: the same per token
  } of = Of::kNone;
  double factor = 1.0;
};

// What a layer keeps beside its weights; it is saved in checkpoints.
struct GateState {
  std::string_view name;  // after "model.layers.N.mlp.gate."
  std::int64_t size = 0;
};

// What a state may start from.
struct StateSource {
  std::uint64_t seed = 0;
  int layer = 0;
  std::int64_t vocab_size = 0;
  std::span<const std::int64_t> token_counts;  // [V] how often training has each token; empty = unknown
};

struct Gate {
  std::string_view name;

  // ---- options ----
  std::int64_t top_k = 0;  // the only one allowed; 0 = any
  enum class Capacity { kOptional, kNone, kRequired } capacity = Capacity::kOptional;
  std::string_view own_options[7] = {};          // which of own_options.cc it reads
  bool normalises = false;                       // normalise other than "none"
  Normalise paper_normalise = Normalise::kNone;  // what "paper" means
  void (*check)(const GateOptions&) = nullptr;   // what else must hold
  // What a user should know before training with it; empty = nothing.
  std::string_view note = {};

  // ---- selection ----
  bool has_router = true;
  std::int64_t (*max_choices)(const GateOptions&) = nullptr;  // K; null: top_k
  // A token's choices are ranked: first ones get their slots before second ones. Else their number may vary,
  // and K is the most that a token of this rank has.
  bool ordered = true;
  // Whether the choice is the top_k largest logits, and weights and losses are made of the softmax of all of
  // a token's logits: one kernel gives both, and `choose` is not called. Not with noise or a temperature.
  // Null: never.
  bool (*by_softmax)(const GateOptions&) = nullptr;
  // Null where `alone` names another or the choice is always by softmax. ids [T,K], all of them written; -1 =
  // absent. Rows of tokens that are not valid have zeros for logits, and what is chosen for them is thrown
  // away.
  void (*choose)(const GateOptions&, const GateInput&, std::span<std::int32_t> ids) = nullptr;
  // In training, after `choose`: -1 for choices that are left out at random. They take no slot, but share the
  // weight where it is normalised before drops. Of ordered gates, and not with by_softmax.
  void (*leave_out)(const GateOptions&, const GateInput&, std::span<std::int32_t> ids) = nullptr;
  // For gates that look at tokens together.
  Gathering (*gathering)(const GateOptions&, bool training) = nullptr;
  Assignment (*assign)(const GateOptions&, std::span<const float> logits) = nullptr;
  // The gate that chooses in inference, where who else is in the pass must not matter; empty = this one.
  std::string_view alone = {};

  // ---- logits: (h + noise) / temperature is what everything but the z-loss sees ----
  void (*noise)(const GateOptions&, const GateInput&, std::span<float> noise) = nullptr;  // in training
  double (*temperature)(const GateOptions&, std::int64_t step) = nullptr;

  // ---- weights and losses ----
  Weighing (*weighing)(const GateOptions&) = nullptr;
  Balance (*balance)(const GateOptions&) = nullptr;
  // A further loss: its sum over tokens, and the derivative by p [T,E], p as in Weighing. Its coefficient is
  // an option of the gate.
  double (*token_loss)(const GateOptions&, std::span<const float> p, const Choices&,
                       std::span<float> derivative) = nullptr;
  double GateOptions::*token_loss_coefficient = nullptr;

  // ---- state ----
  GateState (*state)(const GateOptions&, std::int64_t vocab_size) = nullptr;
  std::vector<float> (*first_state)(const GateOptions&, const StateSource&) = nullptr;  // null: zeros
  bool (*reads_token_counts)(const GateOptions&) = nullptr;
  // After an optimizer step that was not skipped; counts [E] choices of the global batch.
  void (*update_state)(const GateOptions&, std::span<float> state,
                       std::span<const std::int64_t> counts) = nullptr;
};

// InvalidArgument with the known names, where `name` is none of them.
const Gate& gate_named(std::string_view name);
std::vector<std::string> gate_names();

// Options that only some gates read (Gate::own_options): the first takes those that options.name does not
// read back to their defaults; the second refuses other values than these.
GateOptions without_foreign_options(GateOptions options);
void refuse_foreign_options(const GateOptions& options);

// The parts above with what a null stands for.
std::int64_t max_choices(const GateOptions& options);
Normalise normalise_of(const GateOptions& options);
GateState state_of(const GateOptions& options, std::int64_t vocab_size);
std::vector<float> first_state(const GateOptions& options, const StateSource& source);

// ---- for the gates' files ----

// softmax of each run of E / blocks logits, [T,E]: the largest first taken off, so that a sum is at least 1.
std::vector<float> softmax_rows(std::span<const float> logits, std::int64_t num_experts,
                                std::int64_t blocks = 1);
// The k largest logits of each row; ties go to the lowest expert id.
void choose_largest(const GateOptions& options, std::span<const float> scores, std::span<std::int32_t> ids);
// Number of tokens of [T,E] values.
std::size_t rows_of(const GateOptions& options, std::span<const float> values);

}  // namespace moesaic
