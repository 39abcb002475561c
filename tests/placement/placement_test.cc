#include "moesaic/placement/placement.h"

#include <gtest/gtest.h>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

std::vector<int> sizes(const Placement& placement) {
  std::vector<int> result;
  for (int place = 0; place < placement.exchange_size(); ++place) {
    result.push_back(static_cast<int>(placement.experts_of(place).size()));
  }
  return result;
}

TEST(Placement, ThirtyExpertsOnEightRanksGoFourFourFourFourFourFourThreeThree) {
  EXPECT_EQ(sizes(Placement::contiguous(30, 8)), (std::vector<int>{4, 4, 4, 4, 4, 4, 3, 3}));
}

TEST(Placement, SixtyExpertsOnTwoRanksGiveRankOneThirtyToFiftyNine) {
  const auto placement = Placement::contiguous(60, 2);
  EXPECT_EQ(placement.experts_of(1).front(), 30);
  EXPECT_EQ(placement.experts_of(1).back(), 59);
  EXPECT_EQ(placement.local_index(31), 1);
}

TEST(Placement, FourExpertsOnEightRanksHaveTwoOwnersEach) {
  const auto placement = Placement::contiguous(4, 8);
  EXPECT_EQ(placement.exchange_size(), 4);
  EXPECT_EQ(placement.num_groups(), 2);
  EXPECT_EQ(placement.group_of(5), 1);
}

TEST(Placement, MoreRanksThanExpertsAndNoCommonDivisorFallsBackToWholeCopies) {
  EXPECT_EQ(Placement::contiguous(4, 7).exchange_size(), 1);
}

TEST(Placement, GatheredStacksExpertsByPlace) {
  const auto placement = Placement::from_table({1, 0, 1, 0}, 4, 2);
  const auto gathered = placement.gathered();
  EXPECT_EQ(gathered.exchange_size(), 1);
  EXPECT_EQ(std::vector<int>(gathered.experts_of(0).begin(), gathered.experts_of(0).end()),
            (std::vector<int>{1, 3, 0, 2}));
  EXPECT_EQ(gathered.local_index(0), 2);
}

TEST(Placement, RefusesGroupsThatDoNotDivideTheWorldAndRanksWithoutExperts) {
  EXPECT_THROW(Placement::contiguous(8, 4, 3), InvalidArgument);
  EXPECT_THROW(Placement::contiguous(2, 4, 4), InvalidArgument);
  EXPECT_THROW(Placement::contiguous(0, 4), InvalidArgument);
  EXPECT_THROW(Placement::from_table({0, 1, 2}, 2, 2), InvalidArgument);
}

}  // namespace
}  // namespace moesaic
