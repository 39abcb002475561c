#include "moesaic/kernels/softmax_top_k.h"

#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/top_k.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

struct Outputs {
  std::vector<std::int32_t> ids;
  std::vector<float> values, probabilities, log_sum, sums;

  Outputs(std::int64_t rows, std::int64_t n, std::int64_t k)
      : ids(rows * k, -7),
        values(rows * k, kNaN),
        probabilities(rows * k, kNaN),
        log_sum(rows, kNaN),
        sums(n, kNaN) {}
  SoftmaxTopK pointers() {
    return {ids.data(), values.data(), probabilities.data(), log_sum.data(), sums.data()};
  }
  bool operator==(const Outputs&) const = default;
};

std::vector<float> random_scores(std::int64_t rows, std::int64_t n) {
  std::vector<float> scores(rows * n);
  const std::uint64_t key = random_key(3, "scores");
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = 3 * random_normal(key, i);
  return scores;
}

std::vector<std::uint8_t> every_third_out(std::int64_t rows) {
  std::vector<std::uint8_t> counted(rows);
  for (std::int64_t r = 0; r < rows; ++r) counted[r] = r % 3 != 1;
  return counted;
}

// What the header promises of the exponential and the logarithm.
void expect_close(const std::vector<float>& got, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 2e-6 * (std::abs(expected[i]) + 1e-30)) << what << " " << i;
  }
}

TEST(SoftmaxTopK, EqualsTheOracleAtEveryShape) {
  for_every_target([] {
    for (const std::int64_t n : {1, 2, 3, 7, 8, 16, 33, 64, 127}) {
      for (const std::int64_t k : {1, 2, 3, 5, 8, 9, 17}) {
        if (k > n) continue;
        for (const std::int64_t rows : {0, 1, 3, 8, 9, 16, 17, 40}) {
          SCOPED_TRACE("rows " + std::to_string(rows) + " n " + std::to_string(n) + " k " +
                       std::to_string(k));
          const std::vector<float> scores = random_scores(rows, n);
          const std::vector<std::uint8_t> counted = every_third_out(rows);
          Outputs got(rows, n, k), expected(rows, n, k);
          softmax_top_k(scores.data(), rows, n, k, counted.data(), got.pointers());
          reference::softmax_top_k(scores.data(), rows, n, k, counted.data(), expected.pointers());
          ASSERT_EQ(got.ids, expected.ids);
          ASSERT_EQ(got.values, expected.values);
          expect_close(got.probabilities, expected.probabilities, "probability");
          expect_close(got.sums, expected.sums, "sum");
          for (std::int64_t r = 0; r < rows; ++r) ASSERT_NEAR(got.log_sum[r], expected.log_sum[r], 1e-5);
        }
      }
    }
  });
}

TEST(SoftmaxTopK, ChoosesByScoreWhereProbabilitiesTie) {
  for_every_target([] {
    // exp(-200) and exp(-300) are both 0 in fp32.
    const std::vector<float> scores{-300, 0, -200, -200, -kInf};
    Outputs got(1, 5, 4);
    softmax_top_k(scores.data(), 1, 5, 4, nullptr, got.pointers());
    EXPECT_EQ(got.ids, (std::vector<std::int32_t>{1, 2, 3, 0}));
    EXPECT_EQ(got.values, (std::vector<float>{0, -200, -200, -300}));
    EXPECT_EQ(got.probabilities, (std::vector<float>{1, 0, 0, 0}));
    EXPECT_EQ(got.log_sum[0], 0);
  });
}

TEST(SoftmaxTopK, StaysFiniteForLargeScores) {
  for_every_target([] {
    const std::vector<float> scores{3e38f, 3e38f, -3e38f};
    Outputs got(1, 3, 2);
    softmax_top_k(scores.data(), 1, 3, 2, nullptr, got.pointers());
    EXPECT_EQ(got.ids, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(got.probabilities, (std::vector<float>{0.5f, 0.5f}));
    EXPECT_EQ(got.sums, (std::vector<float>{0.5f, 0.5f, 0}));
    EXPECT_EQ(got.log_sum[0], 3e38f);
  });
}

TEST(SoftmaxTopK, TheBitsOfARowDoNotDependOnTheOthers) {
  for_every_target([] {
    constexpr std::int64_t kRows = 37, kN = 20, kK = 3;
    const std::vector<float> scores = random_scores(kRows, kN);
    Outputs all(kRows, kN, kK);
    softmax_top_k(scores.data(), kRows, kN, kK, nullptr, all.pointers());
    for (std::int64_t r = 0; r < kRows; ++r) {
      Outputs one(1, kN, kK);
      softmax_top_k(scores.data() + r * kN, 1, kN, kK, nullptr, one.pointers());
      ASSERT_EQ(one.log_sum[0], all.log_sum[r]) << r;
      for (std::int64_t i = 0; i < kK; ++i)
        ASSERT_EQ(one.probabilities[i], all.probabilities[r * kK + i]) << r;
    }
  });
}

TEST(SoftmaxTopK, LeavesSumsAloneWhereNobodyAsks) {
  for_every_target([] {
    const std::vector<float> scores = random_scores(9, 6);
    Outputs with(9, 6, 2), without(9, 6, 2);
    softmax_top_k(scores.data(), 9, 6, 2, nullptr, with.pointers());
    SoftmaxTopK pointers = without.pointers();
    pointers.sums = nullptr;
    softmax_top_k(scores.data(), 9, 6, 2, nullptr, pointers);
    without.sums = with.sums;
    EXPECT_EQ(without, with);
    EXPECT_NEAR(std::accumulate(with.sums.begin(), with.sums.end(), 0.0), 9.0, 1e-5);
  });
}

TEST(SoftmaxTopK, RefusesAKThatIsNotInOneToN) {
  try {
    softmax_top_k(nullptr, 1, 4, 5, nullptr, {});
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("k = 5, expected 1 <= k <= n = 4"), std::string::npos) << e.what();
  }
}

struct Gradients {
  std::vector<float> values, log_sum, sums;
  Gradients(std::int64_t rows, std::int64_t n, std::int64_t k) : values(rows * k), log_sum(rows), sums(n) {
    const std::uint64_t key = random_key(4, "gradients");
    for (auto* all : {&values, &log_sum, &sums}) {
      for (std::size_t i = 0; i < all->size(); ++i) (*all)[i] = random_normal(key, i, all->size());
    }
  }
  SoftmaxTopKGradients pointers() const { return {values.data(), log_sum.data(), sums.data()}; }
};

TEST(SoftmaxTopKBackward, EqualsTheOracleAtEveryShape) {
  for_every_target([] {
    for (const std::int64_t n : {1, 3, 8, 33, 64}) {
      for (const std::int64_t k : {1, 2, 8, 9}) {
        if (k > n) continue;
        for (const std::int64_t rows : {0, 1, 9, 16, 21}) {
          const std::vector<float> scores = random_scores(rows, n);
          const std::vector<std::uint8_t> counted = every_third_out(rows);
          Outputs out(rows, n, k);
          reference::softmax_top_k(scores.data(), rows, n, k, counted.data(), out.pointers());
          if (rows > 0) out.ids[0] = -1;
          const Gradients gradients(rows, n, k);
          std::vector<float> got(rows * n, kNaN), expected(rows * n, kNaN);
          softmax_top_k_backward(scores.data(), out.log_sum.data(), out.ids.data(), rows, n, k,
                                 counted.data(), gradients.pointers(), got.data());
          reference::softmax_top_k_backward(scores.data(), out.log_sum.data(), out.ids.data(), rows, n, k,
                                            counted.data(), gradients.pointers(), expected.data());
          for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5) << "n " << n;
        }
      }
    }
  });
}

// The loss whose gradients are given, in fp64: sum of d_values * values + d_log_sum * log_sum + d_sums *
// sums.
double loss(const std::vector<double>& scores, std::int64_t rows, std::int64_t n, std::int64_t k,
            const std::vector<std::int32_t>& ids, const std::vector<std::uint8_t>& counted,
            const Gradients& gradients) {
  double total = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += std::exp(scores[r * n + j]);
    total += gradients.log_sum[r] * std::log(sum);
    for (std::int64_t i = r * k; i < (r + 1) * k; ++i) total += gradients.values[i] * scores[r * n + ids[i]];
    for (std::int64_t j = 0; counted[r] && j < n; ++j) {
      total += gradients.sums[j] * std::exp(scores[r * n + j]) / sum;
    }
  }
  return total;
}

TEST(SoftmaxTopKBackward, OracleEqualsFiniteDifferences) {
  constexpr std::int64_t kRows = 4, kN = 6, kK = 2;
  const std::vector<float> scores = random_scores(kRows, kN);
  const std::vector<std::uint8_t> counted = every_third_out(kRows);
  Outputs out(kRows, kN, kK);
  reference::softmax_top_k(scores.data(), kRows, kN, kK, counted.data(), out.pointers());
  const Gradients gradients(kRows, kN, kK);
  std::vector<float> got(kRows * kN);
  reference::softmax_top_k_backward(scores.data(), out.log_sum.data(), out.ids.data(), kRows, kN, kK,
                                    counted.data(), gradients.pointers(), got.data());
  std::vector<double> at(scores.begin(), scores.end());
  for (std::size_t i = 0; i < at.size(); ++i) {
    constexpr double kStep = 1e-5;
    const auto moved = [&](double by) {
      std::vector<double> there = at;
      there[i] += by;
      return loss(there, kRows, kN, kK, out.ids, counted, gradients);
    };
    EXPECT_NEAR(got[i], (moved(kStep) - moved(-kStep)) / (2 * kStep), 1e-5) << i;
  }
}

}  // namespace
}  // namespace moesaic::kernels
