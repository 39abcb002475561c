#include "moesaic/kernels/top_k.h"

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

struct Chosen {
  std::vector<std::int32_t> ids;
  std::vector<float> values;
  bool operator==(const Chosen&) const = default;
};

Chosen choose(const std::vector<float>& scores, std::int64_t n, std::int64_t k) {
  const auto rows = static_cast<std::int64_t>(scores.size()) / n;
  Chosen chosen{std::vector<std::int32_t>(rows * k, -7), std::vector<float>(rows * k, kNaN)};
  top_k(scores.data(), rows, n, k, chosen.ids.data(), chosen.values.data());
  return chosen;
}

TEST(TopK, TiesGoToTheLowestIndex) {
  for_every_target([] {
    EXPECT_EQ(choose(std::vector<float>(8, 0.5f), 8, 2), (Chosen{{0, 1}, {0.5f, 0.5f}}));
    EXPECT_EQ(choose({1, 3, 2, 3, 2, 3}, 6, 4), (Chosen{{1, 3, 5, 2}, {3, 3, 3, 2}}));
  });
}

TEST(TopK, MinusInfinityAndSignedZerosAreScoresLikeAnyOther) {
  for_every_target([] {
    EXPECT_EQ(choose({-kInf, -kInf, 1, -kInf}, 4, 4), (Chosen{{2, 0, 1, 3}, {1, -kInf, -kInf, -kInf}}));
    const Chosen zeros = choose({-0.0f, 0.0f, kInf}, 3, 3);
    EXPECT_EQ(zeros.ids, (std::vector<std::int32_t>{2, 0, 1}));
    EXPECT_TRUE(std::signbit(zeros.values[1]));
    EXPECT_FALSE(std::signbit(zeros.values[2]));
  });
}

TEST(TopK, SignedZerosTieInALongList) {
  std::vector<float> scores(12, -1.0f);
  for (const std::size_t j : {2, 5, 11}) scores[j] = j == 5 ? 0.0f : -0.0f;
  const Chosen chosen = choose(scores, 12, 10);
  EXPECT_EQ(chosen.ids, (std::vector<std::int32_t>{2, 5, 11, 0, 1, 3, 4, 6, 7, 8}));
  EXPECT_TRUE(std::signbit(chosen.values[0]));
  EXPECT_FALSE(std::signbit(chosen.values[1]));
}

TEST(TopK, EqualsAStableSortAtEveryShape) {
  for_every_target([] {
    for (const std::int64_t n : {1, 2, 3, 4, 5, 8, 9, 16, 33, 64, 127}) {
      for (std::int64_t k = 1; k <= std::min<std::int64_t>(n, 17); ++k) {
        for (const std::int64_t rows : {0, 1, 3, 4, 7, 8, 9, 17}) {
          std::vector<float> scores(rows * n);
          // Few distinct values, so that most rows hold ties.
          for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = float(random_bits(11, i, n) % 9) - 4;
          Chosen expected{std::vector<std::int32_t>(rows * k), std::vector<float>(rows * k)};
          reference::top_k(scores.data(), rows, n, k, expected.ids.data(), expected.values.data());
          ASSERT_EQ(choose(scores, n, k), expected) << "rows " << rows << " n " << n << " k " << k;
        }
      }
    }
  });
}

TEST(TopK, RefusesAKThatIsNotInOneToN) {
  const std::vector<float> scores(4);
  EXPECT_THROW(choose(scores, 4, 5), InvalidArgument);
  try {
    choose(scores, 4, 0);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("k = 0, expected 1 <= k <= n = 4"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace moesaic::kernels
