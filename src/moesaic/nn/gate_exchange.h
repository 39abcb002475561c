// gate_exchange.h: what the ranks tell each other about a layer's routing.
//
// Collective over `world`: all ranks, same layer; ranks without tokens take part.
//
//   T tokens of this rank, E experts, K choices, W ranks, N valid tokens of all ranks
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/routing/gate.h"

namespace moesaic {

// One message of integers: 8 (rounds E + E + 3) bytes.
struct Gathered {
  std::vector<std::int64_t> counts;          // [W,rounds,E]
  std::vector<std::int64_t> chosen;          // [E] choices over ranks and rounds
  std::vector<std::int64_t> first_chosen;    // [E] of the first round
  std::vector<double> probability;           // [E] sums over ranks, for the balance loss
  std::vector<std::int64_t> tokens_of_rank;  // [W] T, padding included
  std::int64_t valid = 0;
  int non_finite_rank = -1;  // the lowest one with such tokens
  std::int64_t non_finite_token = -1;
};
Gathered gather_counts(Communicator& world, int layer, const Choices& choices,
                       const std::vector<double>& probability);

// Choices of gates that look at tokens together.
//   kAllRanks: every rank receives all logits (4 N E bytes) and assigns all tokens.
//   kOwnRank: nothing is sent.
//   kShuffled: a random order of all valid tokens, from (seed, lane), is cut into W hands; a rank receives
//   the logits of its hand (4 N E / W bytes), assigns it, and sends the experts back (4 N / W bytes).
Choices choose_across(Communicator& world, int layer, Gathering how, const GateOptions& options,
                      const GateInput& input);

// The scores that order choices under Priority::kScore: of all ranks (8 bytes a choice), or of this rank
// where that is the capacity's scope. logits [T,E] as choose() had them.
ScoredChoices gather_scores(Communicator& world, int layer, const GateOptions& options,
                            std::span<const float> logits, const Choices& choices,
                            const std::vector<std::int64_t>& tokens_of_rank);

}  // namespace moesaic
