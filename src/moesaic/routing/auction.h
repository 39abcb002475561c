// auction.h: every expert as many tokens as any other, with a sum of scores near the largest possible.
//
// Local. scores [T,E], fp32, finite. Expert e gets floor(T/E) tokens, the first T mod E experts one more.
// Experts bid for tokens (Bertsekas' auction, Lewis et al. 2021): in a round, every expert that lacks n of
// its J tokens keeps what it holds and looks at the n + 1 others that it values most, value = score - price.
// With what it holds, these are its J + 1. It bids for the first n: value - (n+1)-th value + e, with e =
// max((largest score - smallest) / 50, 1e-4). A token goes to its highest bidder (ties: lowest expert), and
// its price rises by the bid. When every token has an expert, no expert values one it does not hold above one
// it holds by more than e: the sum is within T e of the best. After kMostRounds rounds, what is left goes to
// the best free place. Cost: a round is O(T E); rounds grow with (score range) / e and with how alike the
// experts' wishes are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

constexpr int kMostRounds = 2000;

// [E]: tokens of each expert, ascending. most_rounds: for tests.
std::vector<std::vector<std::int64_t>> auction(std::span<const float> scores, std::int64_t num_experts,
                                               int most_rounds = kMostRounds);

// The e above.
double auction_step(std::span<const float> scores);

}  // namespace moesaic
