#include "moesaic/train/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

using Shares = std::vector<std::int64_t>;

Shares shares_of(const std::vector<double>& weights) {
  const Mixture mixture(weights);
  return {mixture.shares().begin(), mixture.shares().end()};
}

TEST(Mixture, AfterAnyNumberOfSamplesEachSourceIsWithinOneOfItsShare) {
  const std::vector<std::vector<double>> cases = {{1},
                                                  {1, 1, 1},
                                                  {0.7, 0.3},
                                                  {5, 0, 1},
                                                  {0.5, 0.25, 0.125, 0.0625, 0.0625},
                                                  {97, 1, 1, 1},
                                                  {3, 5, 7, 11, 13, 17, 19},
                                                  {1.0 / 3, 2.0 / 7, 0.1234567}};
  for (const auto& weights : cases) {
    const Mixture mixture(weights);
    const std::int64_t n = std::min<std::int64_t>(3 * mixture.period(), 5'000);
    Shares drawn(weights.size(), 0);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto [source, nth] = mixture.at(i);
      ASSERT_EQ(nth, drawn.at(source)++);
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const std::int64_t ahead = drawn[s] * mixture.period() - (i + 1) * mixture.shares()[s];
        ASSERT_LT(std::abs(ahead), mixture.period()) << "source " << s << " after " << i + 1 << " samples";
      }
    }
  }
}

TEST(Mixture, WeightsOfFewDecimalsAreExact) {
  EXPECT_EQ(shares_of({1, 1, 1}), (Shares{1, 1, 1}));
  EXPECT_EQ(shares_of({0.7, 0.2, 0.1}), (Shares{7, 2, 1}));
  EXPECT_EQ(shares_of({20, 0, 30}), (Shares{2, 0, 3}));
  EXPECT_EQ(shares_of({0.123456, 0.5}), (Shares{3858, 15625}));  // 123456 and 500000 over 32
}

TEST(Mixture, OtherWeightsAreRoundedToMillionthsOfTheirSum) {
  const Shares thirds = shares_of({1.0 / 3, 2.0 / 3, 1e-12});
  EXPECT_EQ(thirds, (Shares{333333, 666667, 1}));
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(shares_of({most, most, most}), (Shares{333333, 333333, 333333}));
}

TEST(Mixture, PlacesFarAheadAreFoundAtOnce) {
  const Mixture mixture(std::vector<double>{2, 1});
  const std::int64_t periods = 1'000'000'000'000;
  std::int64_t of_second = 0;
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto [source, nth] = mixture.at(3 * periods + i);
    if (source != 1) continue;
    EXPECT_EQ(nth, periods);
    ++of_second;
  }
  EXPECT_EQ(of_second, 1);
}

TEST(Mixture, WeightsThatAreNoneAreRefused) {
  EXPECT_THROW(Mixture(std::vector<double>{}), InvalidArgument);
  EXPECT_THROW(Mixture(std::vector<double>{0, 0}), InvalidArgument);
  EXPECT_THROW(Mixture(std::vector<double>{1, -1}), InvalidArgument);
  EXPECT_THROW(Mixture(std::vector<double>{1, std::numeric_limits<double>::infinity()}), InvalidArgument);
}

}  // namespace
}  // namespace moesaic
