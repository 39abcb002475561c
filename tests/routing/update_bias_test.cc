#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate.h"

namespace moesaic {
namespace {

using Bias = std::vector<float>;
using Counts = std::vector<std::int64_t>;

TEST(UpdateBias, RaisesTheStarvedLowersTheCrowdedAndLeavesTheMean) {
  Bias bias{0, 0, 0, 0};
  update_bias(bias, Counts{10, 4, 0, 2}, 0.5, false);  // mean 4
  EXPECT_EQ(bias, (Bias{-0.5f, 0.0f, 0.5f, 0.5f}));
}

TEST(UpdateBias, ASmallStepIsNotLostAsItWouldBeInBf16) {
  Bias bias{0.5f, 0.5f};
  update_bias(bias, Counts{1, 3}, 1e-3, false);
  EXPECT_FLOAT_EQ(bias[0], 0.501f);
  EXPECT_FLOAT_EQ(bias[1], 0.499f);
}

TEST(UpdateBias, CountsThatDifferByOneAreToldApart) {
  for (const std::int64_t count :
       {std::int64_t{40840}, (std::int64_t{1} << 24) + 1, (std::int64_t{1} << 53) + 1}) {
    Bias bias{0, 0};
    update_bias(bias, Counts{count, count - 1}, 1.0, false);
    EXPECT_EQ(bias, (Bias{-1, 1}));
  }
}

TEST(UpdateBias, EqualCountsChangeNothing) {
  Bias bias{0.25f, -0.25f, 0.0f};
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{7}}) {
    update_bias(bias, Counts(3, count), 1e-3, false);
    EXPECT_EQ(bias, (Bias{0.25f, -0.25f, 0.0f}));
  }
}

TEST(UpdateBias, CentredStepsSumToZero) {
  Bias bias{0, 0, 0, 0};
  update_bias(bias, Counts{13, 1, 1, 1}, 1.0, true);  // signs -1 1 1 1, mean 0.5
  EXPECT_EQ(bias, (Bias{-1.5f, 0.5f, 0.5f, 0.5f}));
}

TEST(UpdateBias, RefusesCountsOfAnotherNumberOfExpertsOrBelowZero) {
  Bias bias{0, 0};
  EXPECT_THROW(update_bias(bias, Counts{1}, 1e-3, false), InvalidArgument);
  EXPECT_THROW(update_bias(bias, Counts{1, -1}, 1e-3, false), InvalidArgument);
}

}  // namespace
}  // namespace moesaic
