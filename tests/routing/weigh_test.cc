#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/gate.h"

namespace moesaic {
namespace {

GateOptions gate(std::int64_t num_experts, std::int64_t top_k, ScoreKind score, Normalise normalise) {
  GateOptions options;
  options.num_experts = num_experts;
  options.top_k = top_k;
  options.score = score;
  options.normalise = normalise;
  return options;
}

// The plan of one rank, dropless or with capacity, weighed.
RoutingPlan route(const GateOptions& options, const std::vector<float>& logits,
                  const std::vector<std::uint8_t>& mask = {}) {
  const auto choices = choose(options, {.logits = logits, .mask = mask});
  auto plan = admit(options, choices, choices.counts, choices.valid_tokens, 0, 1);
  weigh(options, logits, choices, plan);
  return plan;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], tolerance) << "weight " << i;
}

TEST(Weigh, SoftmaxThenTopTwoOfFour) {
  const std::vector<float> logits{2, 1, 0, -1};
  expect_near(route(gate(4, 2, ScoreKind::kSoftmax, Normalise::kNone), logits).weights, {0.644f, 0.237f},
              5e-4f);
  expect_near(route(gate(4, 2, ScoreKind::kSoftmax, Normalise::kBeforeDrop), logits).weights,
              {0.731f, 0.269f}, 5e-4f);
}

TEST(Weigh, FollowsTheFormulaInDoublePrecision) {
  for (const auto score : {ScoreKind::kSoftmax, ScoreKind::kSigmoid}) {
    for (const auto normalise : {Normalise::kNone, Normalise::kBeforeDrop, Normalise::kAfterDrop}) {
      auto options = gate(6, 3, score, normalise);
      options.capacity_factor = 0.6;  // some choices are dropped
      if (score == ScoreKind::kSigmoid && normalise != Normalise::kNone) options.route_scale = 2.5;
      const std::size_t num_tokens = 20;
      std::vector<float> logits(num_tokens * 6);
      for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 3 * random_normal(random_key(5, "h"), i);
      const auto choices = choose(options, {.logits = logits});
      const auto plan = route(options, logits);
      ASSERT_GT(plan.dropped_capacity, 0);
      for (std::size_t t = 0; t < num_tokens; ++t) {
        std::vector<double> s(6);
        for (std::size_t e = 0; e < 6; ++e) {
          const double h = logits[t * 6 + e];
          s[e] = score == ScoreKind::kSigmoid ? 1 / (1 + std::exp(-h)) : std::exp(h);
        }
        double sum = 0;
        for (std::size_t k = 0; k < 3; ++k) {
          const auto& over = normalise == Normalise::kAfterDrop ? plan.expert_ids : choices.expert_ids;
          const int e = over[t * 3 + k];
          if (e >= 0) sum += s[static_cast<std::size_t>(e)];
        }
        if (normalise == Normalise::kNone) {
          sum = score == ScoreKind::kSigmoid ? 1 : std::accumulate(s.begin(), s.end(), 0.0);
        }
        for (std::size_t k = 0; k < 3; ++k) {
          const int e = plan.expert_ids[t * 3 + k];
          const double expected = e < 0 ? 0 : s[static_cast<std::size_t>(e)] / sum * options.route_scale;
          EXPECT_NEAR(plan.weights[t * 3 + k], expected, 1e-6 * options.route_scale);
        }
      }
    }
  }
}

TEST(Weigh, TinySigmoidScoresStillSumToOne) {
  const float logit = std::log(1e-22f);
  for (const auto normalise : {Normalise::kBeforeDrop, Normalise::kAfterDrop}) {
    const auto plan = route(gate(4, 4, ScoreKind::kSigmoid, normalise), {logit, logit, logit, logit});
    expect_near(plan.weights, {0.25f, 0.25f, 0.25f, 0.25f}, 1e-6f);
  }
}

TEST(Weigh, SigmoidScoresOfZeroGiveEqualWeights) {
  const auto plan = route(gate(3, 2, ScoreKind::kSigmoid, Normalise::kBeforeDrop), {-1e30f, -1e30f, -1e30f});
  EXPECT_EQ(plan.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(Weigh, LargeLogitsDoNotOverflow) {
  expect_near(route(gate(3, 2, ScoreKind::kSoftmax, Normalise::kNone), {1e30f, 0, -1e30f}).weights, {1, 0},
              0);
  expect_near(route(gate(3, 2, ScoreKind::kSigmoid, Normalise::kNone), {1e30f, 0, -1e30f}).weights, {1, 0.5f},
              0);
}

TEST(Weigh, NormalisedAfterDropTheLastOneLeftTakesAll) {
  auto options = gate(3, 2, ScoreKind::kSoftmax, Normalise::kAfterDrop);
  options.capacity_factor = 0.5;  // 1 row per expert
  // Token 0 wants 0 then 1, token 1 wants 1 then 2: token 0's second choice is dropped.
  const std::vector<float> logits{2, 1, 0, /**/ 0, 2, 1};
  const auto after = route(options, logits);
  EXPECT_EQ(after.expert_ids, (std::vector<std::int32_t>{0, -1, 1, 2}));
  expect_near(after.weights, {1.0f, 0.0f, 0.731f, 0.269f}, 5e-4f);
  options.normalise = Normalise::kBeforeDrop;
  expect_near(route(options, logits).weights, {0.731f, 0.0f, 0.731f, 0.269f}, 5e-4f);
}

TEST(Weigh, PaddedDroppedAndNonFiniteChoicesWeighZero) {
  auto options = gate(2, 1, ScoreKind::kSoftmax, Normalise::kNone);
  options.capacity_factor = 1.0;  // ceil(2 / 2) = 1 row per expert
  const auto plan = route(options, {1, 0, /**/ NAN, 0, /**/ 5, 0, /**/ 1, 0}, {1, 1, 0, 1});
  EXPECT_EQ(plan.expert_ids, (std::vector<std::int32_t>{0, -1, -1, -1}));
  expect_near(plan.weights, {0.731f, 0, 0, 0}, 5e-4f);
  EXPECT_EQ(plan.masked, 1);
  EXPECT_EQ(plan.dropped_non_finite, 1);
  EXPECT_EQ(plan.dropped_capacity, 1);
}

TEST(Weigh, TheSelectionBiasDoesNotEnterTheWeight) {
  auto options = gate(2, 1, ScoreKind::kSigmoid, Normalise::kNone);
  options.bias_balance = true;
  const std::vector<float> logits{1.0f, 0.0f}, bias{0.0f, 5.0f};
  const auto choices = choose(options, {.logits = logits, .state = bias});
  auto plan = admit(options, choices, choices.counts, 1, 0, 1);
  weigh(options, logits, choices, plan);
  EXPECT_EQ(plan.expert_ids, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(plan.weights, (std::vector<float>{0.5f}));
}

TEST(Weigh, RefusesLogitsOfAnotherShape) {
  const auto options = gate(2, 1, ScoreKind::kSoftmax, Normalise::kNone);
  const auto choices = choose(options, {.logits = std::vector<float>{1, 0}});
  auto plan = admit(options, choices, choices.counts, 1, 0, 1);
  EXPECT_THROW(weigh(options, std::vector<float>{1, 0, 0, 1}, choices, plan), InvalidArgument);
}

}  // namespace
}  // namespace moesaic
