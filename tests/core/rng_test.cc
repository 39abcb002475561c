#include "moesaic/core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

// Known answers published with Random123 (philox4x32, 10 rounds).
TEST(Rng, PhiloxMatchesThePublishedKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, PermutationVisitsEveryIndexOnce) {
  for (const std::int64_t size : {1, 2, 3, 4, 5, 17, 256, 1000}) {
    std::vector<int> seen(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      ++seen.at(static_cast<std::size_t>(random_permutation(random_key(7, "epoch"), size, i)));
    }
    for (const int count : seen) EXPECT_EQ(count, 1) << "size " << size;
  }
  EXPECT_THROW(random_permutation(1, 4, 4), InvalidArgument);
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  const std::uint64_t key = random_key(1, "w");
  double sum = 0, squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const double v = random_normal(key, static_cast<std::uint64_t>(i));
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.03);
  EXPECT_NEAR(squares / kCount, 1.0, 0.03);
}

TEST(Rng, KeysDifferByNameAndSeed) {
  EXPECT_NE(random_key(1, "a"), random_key(1, "b"));
  EXPECT_NE(random_key(1, "a"), random_key(2, "a"));
  EXPECT_EQ(random_key(1, "a"), random_key(1, "a"));
}

}  // namespace
}  // namespace moesaic
