#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/gate.h"

namespace moesaic {
namespace {

using Ids = std::vector<std::int32_t>;
using Counts = std::vector<std::int64_t>;

GateOptions top_k_gate(std::int64_t num_experts, std::int64_t top_k) {
  GateOptions options;
  options.num_experts = num_experts;
  options.top_k = top_k;
  return options;
}

std::vector<float> random_logits(std::uint64_t seed, std::int64_t n) {
  std::vector<float> logits(static_cast<std::size_t>(n));
  const auto key = random_key(seed, "logits");
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = random_normal(key, i);
  return logits;
}

TEST(Choose, TakesTheLargestLogitsInDescendingOrder) {
  const std::vector<float> logits{0, 3, 1, 2, /**/ 5, 4, 6, 7};
  const auto choices = choose(top_k_gate(4, 2), {.logits = logits});
  EXPECT_EQ(choices.expert_ids, (Ids{1, 3, 3, 2}));
  EXPECT_EQ(choices.counts, (Counts{0, 1, 0, 1, /**/ 0, 0, 1, 1}));
  EXPECT_EQ(choices.valid_tokens, 2);
}

TEST(Choose, AgreesWithAStableSortOfRandomLogits) {
  for (const std::int64_t top_k : {1, 2, 3, 8}) {
    const std::int64_t num_tokens = 37, num_experts = 8;
    auto logits = random_logits(static_cast<std::uint64_t>(top_k), num_tokens * num_experts);
    for (float& h : logits) h = std::round(h * 2);  // many ties
    const auto choices = choose(top_k_gate(num_experts, top_k), {.logits = logits});
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const float* h = logits.data() + t * num_experts;
      Ids order(static_cast<std::size_t>(num_experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return h[a] > h[b]; });
      order.resize(static_cast<std::size_t>(top_k));
      const auto* got = choices.expert_ids.data() + t * top_k;
      EXPECT_EQ(Ids(got, got + top_k), order) << "token " << t;
    }
  }
}

TEST(Choose, TiesGoToTheLowestExpert) {
  EXPECT_EQ(choose(top_k_gate(8, 2), {.logits = std::vector<float>(8, 0.25f)}).expert_ids, (Ids{0, 1}));
}

TEST(Choose, Fp32LogitsThatBf16WouldTieChooseTheLargest) {
  EXPECT_EQ(choose(top_k_gate(3, 1), {.logits = std::vector<float>{1.0f, 1.001f, 1.002f}}).expert_ids,
            (Ids{2}));
}

TEST(Choose, LogitsFarApartThatSoftmaxWouldTieStillHaveAnOrder) {
  // softmax gives 0 for all but the first.
  EXPECT_EQ(choose(top_k_gate(4, 2), {.logits = std::vector<float>{900, 0, 1, 2}}).expert_ids, (Ids{0, 3}));
}

TEST(Choose, SigmoidSelectionAddsTheBiasToTheScore) {
  auto options = top_k_gate(3, 1);
  options.score = ScoreKind::kSigmoid;
  options.bias_balance = true;
  const std::vector<float> logits{2.0f, 0.0f, -1.0f};  // sigmoid: 0.881, 0.5, 0.269
  EXPECT_EQ(choose(options, {.logits = logits}).expert_ids, (Ids{0}));
  EXPECT_EQ(choose(options, {.logits = logits, .state = std::vector<float>{0, 0.38f, 0}}).expert_ids,
            (Ids{0}));
  EXPECT_EQ(choose(options, {.logits = logits, .state = std::vector<float>{0, 0.39f, 0}}).expert_ids,
            (Ids{1}));
  EXPECT_EQ(choose(options, {.logits = logits, .state = std::vector<float>{-0.5f, 0, 0.24f}}).expert_ids,
            (Ids{2}));
}

TEST(Choose, PaddedTokensCountNothingWhateverTheirLogitsHold) {
  const std::int64_t num_experts = 6;
  const auto unpadded = random_logits(3, 4 * num_experts);
  auto padded = unpadded;
  padded.resize(static_cast<std::size_t>(7 * num_experts), std::numeric_limits<float>::quiet_NaN());
  const std::vector<std::uint8_t> mask{1, 1, 1, 1, 0, 0, 0};
  for (const auto score : {ScoreKind::kSoftmax, ScoreKind::kSigmoid}) {
    auto options = top_k_gate(num_experts, 2);
    options.score = score;
    const auto expected = choose(options, {.logits = unpadded});
    const auto got = choose(options, {.logits = padded, .mask = mask});
    EXPECT_EQ(got.counts, expected.counts);
    EXPECT_EQ(got.valid_tokens, 4);
    EXPECT_EQ(got.masked_tokens, 3);
    EXPECT_EQ(got.non_finite_tokens, 0);
    auto ids = expected.expert_ids;
    ids.resize(14, -1);
    EXPECT_EQ(got.expert_ids, ids);
  }
}

TEST(Choose, NonFiniteTokensGetNoExpertAndTheFirstIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{0, 1, /**/ 1, nan, /**/ inf, 0, /**/ 1, 0, /**/ 0, -inf};
  for (const auto score : {ScoreKind::kSoftmax, ScoreKind::kSigmoid}) {
    auto options = top_k_gate(2, 1);
    options.score = score;
    const auto choices = choose(options, {.logits = logits});
    EXPECT_EQ(choices.expert_ids, (Ids{1, -1, -1, 0, -1}));
    EXPECT_EQ(choices.counts, (Counts{1, 1}));
    EXPECT_EQ(choices.valid_tokens, 2);
    EXPECT_EQ(choices.non_finite_tokens, 3);
    EXPECT_EQ(choices.first_non_finite, 1);
  }
}

TEST(Choose, NoTokensGiveZeroCounts) {
  const auto choices = choose(top_k_gate(4, 2), {.logits = {}});
  EXPECT_EQ(choices.num_tokens, 0);
  EXPECT_EQ(choices.counts, Counts(8, 0));
}

TEST(Choose, RefusesShapesThatDoNotFit) {
  const std::vector<float> logits(8, 0.0f);
  EXPECT_THROW(choose(top_k_gate(3, 1), {.logits = logits}), InvalidArgument);
  EXPECT_THROW(choose(top_k_gate(4, 1), {.logits = logits, .mask = std::vector<std::uint8_t>(3, 1)}),
               InvalidArgument);
  EXPECT_THROW(choose(top_k_gate(4, 1), {.logits = logits, .state = std::vector<float>(4, 0.0f)}),
               InvalidArgument);
  auto options = top_k_gate(4, 1);
  options.score = ScoreKind::kSigmoid;
  options.bias_balance = true;
  EXPECT_THROW(choose(options, {.logits = logits, .state = std::vector<float>(3, 0.0f)}), InvalidArgument);
  EXPECT_THROW(choose(options, {.logits = logits, .state = std::vector<float>{0, 0, NAN, 0}}),
               InvalidArgument);
}

}  // namespace
}  // namespace moesaic
