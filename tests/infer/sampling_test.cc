#include "moesaic/infer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "moesaic/core/error.h"

namespace moesaic::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// How often each token comes in 20,000 draws.
std::vector<double> frequencies(const std::vector<float>& logits, const SamplingOptions& options) {
  constexpr int kDraws = 20'000;
  std::vector<double> share(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    share[static_cast<std::size_t>(sample(logits, options, 3, static_cast<std::uint64_t>(i)))] += 1.0;
  }
  for (double& s : share) s /= kDraws;
  return share;
}

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t v = 0; v < got.size(); ++v) EXPECT_NEAR(got[v], expected[v], 0.015) << "token " << v;
}

TEST(Sample, GreedyTakesTheLikeliestAndTheLowestIdOnTies) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 2}, {}, 0, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3}, {}, 0, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{kNan, -5, -kInf}, {}, 0, 0), 1);
}

TEST(Sample, DrawsFollowTheProbabilities) {
  expect_near(frequencies(logits_of({0.1, 0.2, 0.3, 0.4}), {.temperature = 1.0}), {0.1, 0.2, 0.3, 0.4});
  // T = 2 takes square roots: 1 : sqrt 2 : sqrt 3 : 2.
  expect_near(frequencies(logits_of({0.1, 0.2, 0.3, 0.4}), {.temperature = 2.0}),
              {0.1627, 0.2301, 0.2818, 0.3254});
}

TEST(Sample, TopKDrawsFromTheKLikeliestAlone) {
  expect_near(frequencies(logits_of({0.1, 0.4, 0.2, 0.3}), {.temperature = 1.0, .top_k = 2}),
              {0, 4.0 / 7, 0, 3.0 / 7});
  EXPECT_EQ(frequencies({1, 1, 1, 1}, {.temperature = 1.0, .top_k = 1})[0], 1.0);  // ties: the lowest id
  expect_near(frequencies(logits_of({0.1, 0.9}), {.temperature = 1.0, .top_k = 9}), {0.1, 0.9});
}

TEST(Sample, TopPDrawsFromTheFewestThatReachIt) {
  const auto logits = logits_of({0.1, 0.4, 0.2, 0.3});
  expect_near(frequencies(logits, {.temperature = 1.0, .top_p = 0.65}), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_near(frequencies(logits, {.temperature = 1.0, .top_p = 0.75}), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  EXPECT_EQ(frequencies(logits, {.temperature = 1.0, .top_p = 1e-9})[1], 1.0);
  // Of what top-k leaves (4/7, 3/7), half needs one token only.
  EXPECT_EQ(frequencies(logits, {.temperature = 1.0, .top_k = 2, .top_p = 0.5})[1], 1.0);
}

TEST(Sample, ADrawIsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingOptions options{.temperature = 1.0};
  EXPECT_EQ(sample(logits, options, 1, 7), sample(logits, options, 1, 7));
  EXPECT_NE(sample(logits, options, 1, 7), sample(logits, options, 2, 7));
  EXPECT_NE(sample(logits, options, 1, 7), sample(logits, options, 1, 8));
}

TEST(Sample, TokensThatSwapPlacesByRoundingAreDrawnAlike) {
  const float less = std::nextafter(0.0f, -1.0f);
  for (std::uint64_t position = 0; position < 200; ++position) {
    const SamplingOptions options{.temperature = 1.0, .top_k = 2};
    EXPECT_EQ(sample(std::vector<float>{0, less, -9}, options, 5, position),
              sample(std::vector<float>{less, 0, -9}, options, 5, position));
  }
}

TEST(Sample, LogitsThatAreNotFiniteAreAnError) {
  EXPECT_THROW(sample(std::vector<float>{kNan, kNan}, {}, 0, 0), NonFinite);
  EXPECT_THROW(sample(std::vector<float>{kInf, 1}, {}, 0, 0), NonFinite);
  EXPECT_THROW(sample(std::vector<float>{}, {}, 0, 0), NonFinite);
  EXPECT_GT(frequencies({kNan, 0, 0}, {.temperature = 1.0})[2], 0.4);
}

TEST(Sample, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(validate(SamplingOptions{.temperature = -1}), InvalidArgument);
  EXPECT_THROW(validate(SamplingOptions{.temperature = std::nan("")}), InvalidArgument);
  EXPECT_THROW(validate(SamplingOptions{.top_k = -1}), InvalidArgument);
  EXPECT_THROW(validate(SamplingOptions{.top_p = 0}), InvalidArgument);
  EXPECT_THROW(validate(SamplingOptions{.top_p = 1.5}), InvalidArgument);
}

}  // namespace
}  // namespace moesaic::testing
