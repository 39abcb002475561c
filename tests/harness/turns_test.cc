#include "bench/turns.h"

#include <gtest/gtest.h>

namespace moesaic::bench {
namespace {

TEST(Turns, EveryContenderRunsOnceARoundAndTheFirstChanges) {
  std::string order;
  const auto adds = [&](char letter) { return [&order, letter] { order += letter; }; };
  std::vector<Contender> contenders = {{"a", adds('a'), adds('.')}, {"b", adds('b')}, {"c", adds('c')}};
  take_turns(contenders, 3);
  EXPECT_EQ(order, ".abcbc.ac.ab");
  for (const Contender& contender : contenders) EXPECT_EQ(contender.us.size(), 3u);
}

TEST(Turns, TheRatioIsTheMedianOverRounds) {
  // The second round was slow for both: the ratio of the medians would be 3.
  const Contender a{"a", {}, {}, {10, 200, 30}}, b{"b", {}, {}, {5, 100, 10}};
  EXPECT_EQ(median_ratio(a, b), 2.0);
}

}  // namespace
}  // namespace moesaic::bench
