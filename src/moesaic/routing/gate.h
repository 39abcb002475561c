// gate.h: from router logits to a routing plan, for every gate.
//
// Local: what other ranks have comes in as arguments (nn gathers it). T tokens of this rank, E experts, K
// choices per token, W ranks. Scores are fp32. What each gate does and where it comes from: docs/gates.md;
// what a gate is made of: gate_form.h.
//
// Two steps, because capacity is global: choose() says what each token wants, admit() says what fits.
//   Choices c = choose(options, {.logits = ...});   // local
//   gathered = all_gather(c.counts)                 // [W,rounds,E], by the caller
//   RoutingPlan plan = admit(options, c, gathered, valid_tokens, rank, W);
// Gates that look at tokens together (gathering()) choose from the logits of many ranks:
//   choose_together(options, input, assign(options, all logits), first);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/routing/gate_options.h"
#include "moesaic/routing/plan.h"

namespace moesaic {

// What a gate may look at beside the options. Random choices are keyed by (seed, step, layer, global token).
struct GateInput {
  std::span<const float> logits;                 // [T,E]; empty for a gate without a router
  std::span<const float> state = {};             // of the layer: a bias [E], a table [V], or empty
  std::span<const std::uint8_t> mask = {};       // [T], false = padding; empty = no padding
  std::span<const std::int64_t> token_ids = {};  // [T]; read by gates without a router
  bool training = false;
  std::int64_t step = 0;
  std::uint64_t seed = 0;
  std::uint64_t lane = 0;        // differs between (step, layer) pairs
  std::int64_t first_token = 0;  // global id of token 0 within the step
  std::int64_t sum_groups = 1;   // T is so many sequences whose probabilities are added up apart
};

// What each token wants, before capacity.
struct Choices {
  std::int64_t num_tokens = 0;
  std::int64_t num_choices = 1;          // K
  std::int64_t rounds = 1;               // K: first choices come before second ones; 1: all are equal
  std::vector<std::int32_t> expert_ids;  // [T,K]; -1 = absent, or left out at random
  // [T,K]: the same with those that are left out at random (Gate::leave_out); empty where there are none.
  std::vector<std::int32_t> before_leaving_out;
  std::vector<std::int64_t> counts;  // [rounds,E] tokens whose choice of that round is e
  std::vector<std::uint8_t> valid;   // [T]; neither padding nor non-finite
  std::int64_t valid_tokens = 0;
  std::int64_t masked_tokens = 0;
  std::int64_t non_finite_tokens = 0;
  std::int64_t first_non_finite = -1;  // token index
  // What weights and losses need of the softmax of the logits, where the choice comes with it
  // (Gate::by_softmax); else empty.
  std::vector<float> probabilities;     // [T,K] of the choices
  std::vector<float> log_sums;          // [T] log of the sum of exp(logit)
  std::vector<float> probability_sums;  // [sum_groups,E] over valid tokens
};

// [T,K]: what Normalise::kBeforeDrop adds up over. Choices that are left out at random still share the
// weight.
inline const std::vector<std::int32_t>& ids_before_drop(const Choices& choices) {
  return choices.before_leaving_out.empty() ? choices.expert_ids : choices.before_leaving_out;
}

// Each token for itself. Selection is by logits (softmax keeps their order and may tie where they do not) or
// as docs/gates.md says. Ties go to the lowest expert id. Padding comes first, whatever its logits hold.
// Tokens with non-finite logits are counted and get no expert under either OnNonFinite: an error must name
// the layer and be agreed by all ranks, so the caller gathers first_non_finite and throws NonFinite where
// options say kError.
Choices choose(const GateOptions& options, const GateInput& input);

// Whose tokens a gate must see to choose for one.
enum class Gathering {
  kNone,      // its own: choose()
  kAllRanks,  // all of them, in global order
  kOwnRank,   // those of its rank
  kShuffled   // the tokens of all ranks, dealt out at random: each rank assigns its hand
};
Gathering gathering(const GateOptions& options, bool training);

// The options for inference, where who else is in the pass must not matter: without capacity, and with a gate
// that chooses for each token alone. Options that this gate does not read have their defaults.
GateOptions dropless(const GateOptions& options);

// [E]: the tokens of each expert, in the order of its slots. logits [N,E], all of them finite.
using Assignment = std::vector<std::vector<std::int64_t>>;
Assignment assign(const GateOptions& options, std::span<const float> logits);

// Tokens that choose_together() wants: valid ones, as one list. valid [T].
struct ValidTokens {
  Choices choices;                  // everything but the choices
  std::vector<float> logits;        // [N,E]
  std::vector<std::int64_t> token;  // [N]
};
ValidTokens valid_tokens(const GateOptions& options, const GateInput& input);

// Choices from the experts that assign() gave to this rank's valid tokens: experts_of[i] of valid token i,
// ascending.
Choices choose_together(const GateOptions& options, ValidTokens valid,
                        const std::vector<std::vector<std::int32_t>>& experts_of);

// The choices of all ranks with the scores that order them, for Priority::kScore.
struct ScoredChoices {
  std::int64_t num_choices = 1;              // K
  std::vector<std::int64_t> tokens_of_rank;  // [W]
  std::vector<std::int32_t> expert_ids;      // [sum of tokens,K]
  std::vector<float> scores;                 // [sum of tokens,K]
};
// The scores of this rank's choices: what weighs them, before normalisation. [T,K]; 0 where absent.
std::vector<float> choice_scores(const GateOptions& options, std::span<const float> logits,
                                 const Choices& choices);

// The slot of each choice within its expert, [T,K]; -1 where there is no expert. gathered [W,rounds,E]: every
// rank's counts, this rank's as in `choices`. Slots are given in global order: all first choices before any
// second choice, tokens by (rank, position). So the first slot of choice k at rank r is the sum over k' < k
// of all ranks' counts plus the sum over r' < r of counts of choice k. Counts are of what is wanted, before
// drops: the choices that find room are then those with slot < capacity, and their slots are the same as if
// dropped ones had never asked (they all come later).
std::vector<std::int64_t> slots_wanted(const GateOptions& options, const Choices& choices,
                                       std::span<const std::int64_t> gathered, int rank, int world_size);

// The same under Priority::kScore: by score, largest first, equal ones in the order above.
std::vector<std::int64_t> slots_by_score(const GateOptions& options, const ScoredChoices& all, int rank);

// Keeps the choices whose slot is below expert_capacity(options, valid_tokens). valid_tokens: over the scope,
// and the counts must agree. CapacityScope::kRank: slots are given within this rank. Dropless: gathered and
// valid_tokens are not read. `scored`: read under Priority::kScore with a capacity; of this rank alone where
// that is the scope. Weights are left 0: weigh() or nn's autograd fills them.
RoutingPlan admit(const GateOptions& options, const Choices& choices, std::span<const std::int64_t> gathered,
                  std::int64_t valid_tokens, int rank, int world_size, const ScoredChoices* scored = nullptr);

// The formula nn's autograd follows, as an oracle and for inference: weight of each kept choice, from
// gate_form.h's Weighing. `logits` as choose() had them.
//   softmax: p = softmax(logits); w = p[e]; normalised over the chosen (before drops) or the kept (after).
//   sigmoid: s = sigmoid(logits); w = s[e] / sum * route_scale where normalised; a zero sum gives equal
//   weights.
void weigh(const GateOptions& options, std::span<const float> logits, const Choices& choices,
           RoutingPlan& plan);

// Bias balancing (DeepSeek-V3): b += rate * sign(mean(counts) - counts), counts [E] int64 over the global
// batch of an optimizer step. Exact: compares E*count with the total, in integers. centred: the mean step is
// taken off each.
void update_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate, bool centred);

}  // namespace moesaic
