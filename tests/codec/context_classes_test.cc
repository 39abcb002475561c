// Which contexts share a class, and what the best of two ways to choose contexts is told by.
#include "moesaic/codec/context_classes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "moesaic/core/rng.h"

namespace moesaic::codec {
namespace {

// `n` values around 0 of that spread.
StepCounts counts_of(double spread, std::uint64_t n, std::uint64_t seed) {
  StepCounts counts{};
  for (std::uint64_t i = 0; i < n; ++i) {
    const double value = std::abs(spread * static_cast<double>(random_normal(seed, i)));
    ++counts[step_of(static_cast<std::uint32_t>(value))];
  }
  return counts;
}

std::uint64_t total(std::span<const StepCounts> all) {
  std::uint64_t sum = 0;
  for (const StepCounts& counts : all) sum = std::accumulate(counts.begin(), counts.end(), sum);
  return sum;
}

TEST(ContextClasses, ContextsWithAlikeValuesShareAClass) {
  std::vector<StepCounts> contexts;
  for (std::uint64_t c = 0; c < 16; ++c) contexts.push_back(counts_of(c < 5 ? 1 : 30, 500, c));
  std::uint8_t class_of[16];
  const auto classes = merge_contexts(contexts, 16, 2, class_of);
  ASSERT_EQ(classes.size(), 2);
  for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(class_of[c], c < 5 ? 0 : 1) << c;
  EXPECT_EQ(total(classes), total(contexts));
}

TEST(ContextClasses, InAGridAlikeContextsMeetInBothDirections) {
  // Alike where row and column differ by the same: the diagonals of 8 x 8.
  std::vector<StepCounts> contexts;
  for (std::uint64_t c = 0; c < 64; ++c) {
    contexts.push_back(counts_of(c / 8 < c % 8 ? 1 : c / 8 == c % 8 ? 12 : 150, 500, c));
  }
  std::uint8_t class_of[64];
  EXPECT_EQ(merge_contexts(contexts, 8, 3, class_of).size(), 3);
  for (std::size_t c = 0; c < 64; ++c) {
    const std::size_t like = c / 8 < c % 8 ? 1 : c / 8 == c % 8 ? 0 : 8;
    EXPECT_EQ(class_of[c], class_of[like]) << c;
  }
}

TEST(ContextClasses, ThereAreNoMoreThanAllowedAndEveryValueIsInOne) {
  for (const std::size_t row_length : {8, 16, 64}) {
    for (const std::size_t most : {1, 5, 12}) {
      std::vector<StepCounts> contexts(64);
      for (std::uint64_t c = 0; c < 64; ++c) {
        if (c % 7 != 3) contexts[c] = counts_of(1 + static_cast<double>(c), 50, c);
      }
      std::uint8_t class_of[64];
      const auto classes = merge_contexts(contexts, row_length, most, class_of);
      EXPECT_EQ(classes.size(), most);
      EXPECT_EQ(std::set<int>(class_of, class_of + 64).size(), most);
      std::vector<StepCounts> sums(most);
      for (std::size_t c = 0; c < 64; ++c) {
        for (std::size_t i = 0; i < sums[0].size(); ++i) sums[class_of[c]][i] += contexts[c][i];
      }
      EXPECT_EQ(classes, sums);
    }
  }
}

TEST(ContextClasses, ContextsThatWereNotSeenGoWithTheOneBefore) {
  std::vector<StepCounts> contexts(8);
  contexts[2] = counts_of(1, 100, 1);
  contexts[5] = counts_of(40, 100, 2);
  std::uint8_t class_of[8];
  EXPECT_EQ(merge_contexts(contexts, 8, 12, class_of).size(), 3);
  EXPECT_EQ(std::vector<int>(class_of, class_of + 8), (std::vector<int>{0, 0, 1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(merge_contexts(std::vector<StepCounts>(8), 8, 12, class_of).size(), 1);
}

TEST(ContextClasses, AnEstimateIsNearWhatTheFittedCodeTakes) {
  const std::vector<StepCounts> contexts = {counts_of(2, 20000, 1), counts_of(90, 20000, 2)};
  double bits = 0;
  for (const StepCounts& counts : contexts) bits += cost_in_bits(fit_buckets(counts), counts);
  EXPECT_LT(estimated_bits(contexts), bits);
  EXPECT_GT(estimated_bits(contexts), bits * 0.93);
}

}  // namespace
}  // namespace moesaic::codec
