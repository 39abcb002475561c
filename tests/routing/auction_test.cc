#include "moesaic/routing/auction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/routing/gates.h"

namespace moesaic::testing {
namespace {

using Tokens = std::vector<std::vector<std::int64_t>>;

double total(std::span<const float> scores, const Tokens& tokens) {
  double sum = 0;
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    for (const std::int64_t t : tokens[e]) sum += scores[static_cast<std::size_t>(t) * tokens.size() + e];
  }
  return sum;
}

// The best sum there is, by trying every order of the places.
double best_total(std::span<const float> scores, std::size_t experts) {
  const std::size_t tokens = scores.size() / experts;
  std::vector<std::size_t> places;
  for (std::size_t e = 0; e < experts; ++e) {
    places.insert(places.end(), tokens / experts + (e < tokens % experts ? 1 : 0), e);
  }
  double best = -1e30;
  do {
    double sum = 0;
    for (std::size_t t = 0; t < tokens; ++t) sum += scores[t * experts + places[t]];
    best = std::max(best, sum);
  } while (std::next_permutation(places.begin(), places.end()));
  return best;
}

void expect_balanced(const Tokens& tokens, std::size_t num_tokens) {
  std::vector<int> times(num_tokens, 0);
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    EXPECT_EQ(tokens[e].size(), num_tokens / tokens.size() + (e < num_tokens % tokens.size() ? 1 : 0));
    for (const std::int64_t t : tokens[e]) ++times[static_cast<std::size_t>(t)];
  }
  EXPECT_EQ(times, std::vector<int>(num_tokens, 1));
}

TEST(Auction, IsBalancedAndWithinTStepsOfTheBestAssignment) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::size_t experts = 2 + seed % 3, num_tokens = 4 + seed % 5;
    const auto scores = random_logits(seed, static_cast<std::int64_t>(num_tokens * experts));
    const Tokens tokens = auction(scores, static_cast<std::int64_t>(experts));
    expect_balanced(tokens, num_tokens);
    const double bound = static_cast<double>(num_tokens) * auction_step(scores);
    EXPECT_GE(total(scores, tokens), best_total(scores, experts) - bound) << "seed " << seed;
  }
}

TEST(Auction, ManyTokensThatAllWantTheSameExpertAreSpreadByWhatTheyLose) {
  // Expert 0 is everyone's favourite; later tokens care more.
  std::vector<float> scores;
  for (int t = 0; t < 64; ++t) {
    scores.insert(scores.end(), {5.0f + 0.1f * static_cast<float>(t), 1.0f, 1.0f, 1.0f});
  }
  const Tokens tokens = auction(scores, 4);
  expect_balanced(tokens, 64);
  const double best = 16 * 5 + 0.1 * (48 + 63) * 8 + 48;
  EXPECT_GE(total(scores, tokens), best - 64 * auction_step(scores));
}

TEST(Auction, OddSizesEndWithEveryTokenAssignedOnce) {
  for (const std::size_t num_tokens : {0, 1, 2, 3, 7, 40}) {
    for (const std::size_t experts : {1, 2, 3, 8}) {
      const auto scores = random_logits(7, static_cast<std::int64_t>(num_tokens * experts));
      expect_balanced(auction(scores, static_cast<std::int64_t>(experts)), num_tokens);
      expect_balanced(auction(std::vector<float>(scores.size(), 1.0f), static_cast<std::int64_t>(experts)),
                      num_tokens);
    }
  }
}

TEST(Auction, ALimitOfRoundsLeavesTheRestToTheBestFreePlace) {
  const auto scores = random_logits(8, 40 * 4);
  for (const int rounds : {0, 1, 3}) expect_balanced(auction(scores, 4, rounds), 40);
  // Nothing is bid: every token in turn takes the best free place.
  EXPECT_EQ(auction(std::vector<float>{1, 0, /**/ 2, 0}, 2, 0), (Tokens{{0}, {1}}));
}

TEST(Auction, ThousandsOfRandomTokensNeedNoLimit) {
  const auto scores = random_logits(9, 2048 * 16);
  EXPECT_EQ(auction(scores, 16), auction(scores, 16, 100 * kMostRounds));
}

}  // namespace
}  // namespace moesaic::testing
