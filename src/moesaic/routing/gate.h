// gate.h: selection rules: from router scores to a routing plan.
//
// Local: what other ranks chose comes in as gathered counts (nn gathers them). T tokens of this rank, E
// experts, K choices per token. Scores are fp32. Specs and sources per gate: section Routing of
// docs/algorithms.md.
//
// Two steps, because capacity is global: choose() says what each token wants, admit() says what fits.
//   Choices c = choose(options, logits, ...);       // local
//   gathered = all_gather(c.counts)                 // [W,K,E], by the caller
//   RoutingPlan plan = admit(options, c, gathered, rank);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moesaic/routing/plan.h"

namespace moesaic {

enum class GateKind { kSwitch, kTopK };
enum class Normalise { kNone, kBeforeDrop, kAfterDrop };
enum class ScoreKind { kSoftmax, kSigmoid };
enum class CapacityScope { kGlobal, kRank };
enum class BalanceScope { kGlobal, kRank, kSequence };
enum class OnNonFinite { kError, kDrop };

struct GateOptions {
  GateKind kind = GateKind::kTopK;
  std::int64_t num_experts = 8;
  std::int64_t top_k = 2;  // 1 for kSwitch
  Normalise normalise = Normalise::kNone;
  ScoreKind score = ScoreKind::kSoftmax;
  double route_scale = 1.0;      // factor on normalised sigmoid weights; 1 elsewhere
  double capacity_factor = 0.0;  // 0 = dropless
  std::int64_t min_capacity = 0;
  CapacityScope capacity_scope = CapacityScope::kGlobal;
  bool bias_balance = false;
  OnNonFinite non_finite = OnNonFinite::kError;
};

// Throws InvalidArgument naming the option, what was got and what is allowed.
void validate(const GateOptions& options);

// What each token wants, before capacity.
struct Choices {
  std::int64_t num_tokens = 0;
  std::vector<std::int32_t> expert_ids;  // [T,K]; -1 for padding and non-finite tokens
  std::vector<std::int64_t> counts;      // [K,E] tokens whose k-th choice is e
  std::int64_t valid_tokens = 0;         // tokens neither padding nor non-finite
  std::int64_t masked_tokens = 0;
  std::int64_t non_finite_tokens = 0;
  std::int64_t first_non_finite = -1;  // token index
};

// logits [T,E]. `bias` [E] or empty: added to the scores for selection only (bias_balance). `mask` [T] or
// empty: false = padding, whatever its logits hold. Selection is by logits (softmax keeps their order and may
// tie where they do not) or by sigmoid(logits) + bias. Ties go to the lowest expert id. Tokens with
// non-finite logits are counted and get no expert under either OnNonFinite: an error must name the layer and
// be agreed by all ranks, so the caller gathers first_non_finite and throws NonFinite where options say
// kError.
Choices choose(const GateOptions& options, std::span<const float> logits, std::span<const float> bias,
               std::span<const std::uint8_t> mask);

// Rows an expert may take: clamp(ceil(capacity_factor * K * T / E), min_capacity, T); -1 when dropless. T =
// valid tokens over the scope.
std::int64_t expert_capacity(const GateOptions& options, std::int64_t valid_tokens);

// The slot of each choice within its expert, [T,K]; -1 where there is no expert. gathered [W,K,E]: every
// rank's counts, this rank's as in `choices`. Slots are given in global order: all first choices before any
// second choice, tokens by (rank, position). So the first slot of choice k at rank r is the sum over k' < k
// of all ranks' counts plus the sum over r' < r of counts of choice k. Counts are of what is wanted, before
// drops: the choices that find room are then those with slot < capacity, and their slots are the same as if
// dropped ones had never asked (they all come later).
std::vector<std::int64_t> slots_wanted(const GateOptions& options, const Choices& choices,
                                       std::span<const std::int64_t> gathered, int rank, int world_size);

// Keeps the choices whose slot is below expert_capacity(options, valid_tokens). valid_tokens: over the scope,
// and the counts must agree. CapacityScope::kRank: slots are given within this rank. Dropless: gathered and
// valid_tokens are not read. Weights are left 0: weigh() or nn's autograd fills them.
RoutingPlan admit(const GateOptions& options, const Choices& choices, std::span<const std::int64_t> gathered,
                  std::int64_t valid_tokens, int rank, int world_size);

// The formula nn's autograd follows, as an oracle and for inference: weight of each kept choice.
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
