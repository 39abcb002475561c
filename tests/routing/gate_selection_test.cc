// Each gate's own selection, against a few lines that read like its paper.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "moesaic/core/error.h"
#include "moesaic/routing/score.h"
#include "tests/routing/gates.h"

namespace moesaic::testing {
namespace {

std::vector<double> softmax(const float* h, std::int64_t n) {
  std::vector<double> p;
  double sum = 0;
  for (std::int64_t e = 0; e < n; ++e) sum += std::exp(static_cast<double>(h[e]));
  for (std::int64_t e = 0; e < n; ++e) p.push_back(std::exp(static_cast<double>(h[e])) / sum);
  return p;
}

// Indices of the k largest values, ties to the lowest.
Ids largest(const std::vector<double>& values, std::size_t k) {
  Ids ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  ids.resize(k);
  return ids;
}

TEST(GShard, TheSecondChoiceStaysWithTwiceItsWeightAsItsProbability) {
  GateOptions options = options_for("gshard");
  options.random_second = true;
  const std::int64_t num_tokens = 20000;
  // Weights 0.9 and 0.1 of the two: the second stays in one of five cases.
  std::vector<float> logits;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int64_t e = 0; e < 8; ++e) logits.push_back(e == 3 ? std::log(9.0f) : e == 5 ? 0.0f : -9.0f);
  }
  const auto seconds = [](const Choices& choices) {
    std::int64_t count = 0;
    for (std::size_t i = 1; i < choices.expert_ids.size(); i += 2) count += choices.expert_ids[i] == 5;
    return count;
  };
  const GateInput training{.logits = logits, .training = true, .seed = 1};
  const Choices choices = choose(options, training);
  EXPECT_EQ(choices.counts[3], num_tokens);
  EXPECT_EQ(choices.counts[8 + 5], seconds(choices));
  EXPECT_NEAR(static_cast<double>(seconds(choices)) / static_cast<double>(num_tokens), 0.2, 0.01);
  // By global token, not by rank; not in evaluation.
  GateInput later = training;
  later.logits = training.logits.subspan(100 * 8);
  later.first_token = 100;
  const Choices tail = choose(options, later);
  EXPECT_TRUE(std::equal(tail.expert_ids.begin(), tail.expert_ids.end(), choices.expert_ids.begin() + 200));
  EXPECT_EQ(seconds(choose(options, {.logits = logits})), num_tokens);
}

// Token 0 keeps its second choice with certainty (equal logits), token 1 hardly ever (e^-9).
TEST(GShard, ASecondChoiceThatIsLeftOutStillSharesTheWeightButTakesNoSlot) {
  GateOptions options = options_for("gshard");
  options.capacity_factor = 1.0;  // ceil(2 * 2 / 4): one row per expert
  options.num_experts = 4;
  const std::vector<float> logits{0, 0, -9, -9, /**/ -9, 9, 0, -9};
  const auto routed = [&](Normalise normalise, bool training) {
    options.normalise = normalise;
    const Choices choices = choose(options, {.logits = logits, .training = training, .seed = 1});
    RoutingPlan plan = admit(options, choices, choices.counts, 2, 0, 1);
    weigh(options, logits, choices, plan);
    return plan;
  };
  const float two = 1.0f / (1.0f + std::exp(-9.0f));
  const RoutingPlan paper = routed(Normalise::kPaper, true);
  // Token 0's second choice is past the capacity of expert 1, which token 1 chose first.
  EXPECT_EQ(paper.expert_ids, (Ids{0, -1, 1, -1}));
  EXPECT_FLOAT_EQ(paper.weights[0], 0.5f);
  EXPECT_FLOAT_EQ(paper.weights[2], two);
  EXPECT_EQ(paper.weights[1] + paper.weights[3], 0.0f);
  EXPECT_EQ(paper.dropped_random, 1);
  EXPECT_EQ(paper.dropped_capacity, 1);
  EXPECT_EQ(routed(Normalise::kAfterDrop, true).weights, (std::vector<float>{1, 0, 1, 0}));
  EXPECT_FLOAT_EQ(routed(Normalise::kNone, true).weights[2], softmax(logits.data() + 4, 4)[1]);
  const RoutingPlan evaluated = routed(Normalise::kPaper, false);
  EXPECT_EQ(evaluated.expert_ids, (Ids{0, -1, 1, 2}));
  EXPECT_EQ(evaluated.dropped_random, 0);
}

TEST(GShard, ChoicesLeftOutAtRandomAreCountedApartAndLeaveTheirSlotsToOthers) {
  GateOptions options = options_for("gshard");
  const Tokens tokens(options, 40);
  options.random_second = false;
  const Tokens kept(options, 40);
  for (const auto& split : kGateSplits) {
    std::int64_t left_out = 0, capacity = 0, absent = 0;
    for (const RoutingPlan& plan : Ranks(tokens, split).plans) {
      left_out += plan.dropped_random;
      capacity += plan.dropped_capacity;
      absent += std::ranges::count(plan.expert_ids, -1);
    }
    EXPECT_EQ(left_out + capacity + 2, absent);  // one token is padding
    EXPECT_GT(left_out, 3);
    std::int64_t without = 0;
    for (const RoutingPlan& plan : Ranks(kept, split).plans) without += plan.dropped_capacity;
    EXPECT_LT(capacity, without);
  }
}

TEST(TopK, GroupsAreRankedByTheirTwoBestBiasedScoresAndTheOthersExcluded) {
  GateOptions options = options_for("top_k");
  options.score = ScoreKind::kSigmoid;
  options.bias_balance = true;
  options.num_experts = 12;
  options.num_groups = 4;
  options.kept_groups = 2;
  options.top_k = 3;
  const std::vector<float> logits = random_logits(11, 50 * 12), bias = random_logits(12, 12, 0.2f);
  const Choices choices = choose(options, {.logits = logits, .state = bias});
  for (std::size_t t = 0; t < 50; ++t) {
    std::vector<double> s(12), of_group;
    for (std::size_t e = 0; e < 12; ++e) s[e] = sigmoid(logits[t * 12 + e]) + bias[e];
    for (std::size_t g = 0; g < 4; ++g) {
      std::vector<double> of(s.begin() + static_cast<std::ptrdiff_t>(3 * g),
                             s.begin() + static_cast<std::ptrdiff_t>(3 * g + 3));
      std::sort(of.rbegin(), of.rend());
      of_group.push_back(of[0] + of[1]);
    }
    const Ids kept = largest(of_group, 2);
    for (std::size_t e = 0; e < 12; ++e) {
      if (std::find(kept.begin(), kept.end(), static_cast<std::int32_t>(e / 3)) == kept.end())
        s[e] = -INFINITY;
    }
    const auto row = choices.expert_ids.begin() + static_cast<std::ptrdiff_t>(3 * t);
    EXPECT_EQ(Ids(row, row + 3), largest(s, 3)) << "token " << t;
  }
}

TEST(TopK, ABestExpertAloneInAPoorGroupLosesToAGroupOfTwoGoodOnes) {
  GateOptions options;
  options.num_experts = 4;
  options.top_k = 1;
  options.score = ScoreKind::kSigmoid;
  options.num_groups = 2;
  EXPECT_EQ(choose(options, {.logits = std::vector<float>{3, -5, 2, 2}}).expert_ids, (Ids{2}));
  options.kept_groups = 2;
  EXPECT_EQ(choose(options, {.logits = std::vector<float>{3, -5, 2, 2}}).expert_ids, (Ids{0}));
}

TEST(KTop1, TakesTheBestOfEachPrototype) {
  GateOptions options = options_for("k_top_1");
  options.num_experts = 12;
  options.top_k = 3;
  const std::vector<float> logits = random_logits(21, 30 * 12);
  const Choices choices = choose(options, {.logits = logits});
  for (std::size_t i = 0; i < choices.expert_ids.size(); ++i) {
    const float* h = logits.data() + i * 4;
    EXPECT_EQ(choices.expert_ids[i], static_cast<std::int32_t>(i % 3 * 4) + (std::max_element(h, h + 4) - h));
  }
}

TEST(Sam, StaysInTheGroupWithTheLargestSumOfProbabilities) {
  GateOptions options = options_for("sam");
  options.num_experts = 12;
  options.num_groups = 3;
  const std::vector<float> logits = random_logits(31, 40 * 12);
  const Choices choices = choose(options, {.logits = logits});
  for (std::size_t t = 0; t < 40; ++t) {
    std::vector<double> p = softmax(logits.data() + t * 12, 12), of_group(3, 0.0);
    for (std::size_t e = 0; e < 12; ++e) of_group[e / 4] += p[e];
    const auto group = largest(of_group, 1)[0];
    for (std::size_t e = 0; e < 12; ++e) {
      if (static_cast<std::int32_t>(e / 4) != group) p[e] = -1.0;
    }
    const auto row = choices.expert_ids.begin() + static_cast<std::ptrdiff_t>(2 * t);
    EXPECT_EQ(Ids(row, row + 2), largest(p, 2)) << "token " << t;
  }
}

TEST(Sam, AlignmentCountsBetterExpertsElsewhereAndHasTheDerivativeOfItsFormula) {
  const GateOptions options = options_for("sam");  // two groups of four, two chosen
  std::vector<float> p{0.2f, 0.1f, 0.15f, 0.1f, /**/ 0.25f, 0.16f, 0.02f, 0.02f};
  Choices choices = choose(options, {.logits = std::vector<float>(8, 0.0f)});
  choices.expert_ids = {0, 2};
  const Gate& gate = gate_named("sam");
  std::vector<float> derivative(8);
  // Outside: 0.25 and 0.16 beat the second chosen, 0.15.
  EXPECT_NEAR(gate.token_loss(options, p, choices, derivative), 0.10 + 0.01, 1e-6);
  EXPECT_EQ(derivative, (std::vector<float>{0, 0, -2, 0, 1, 1, 0, 0}));
  choices.valid[0] = 0;
  EXPECT_EQ(gate.token_loss(options, p, choices, derivative), 0.0);
  EXPECT_EQ(derivative, std::vector<float>(8, 0.0f));
}

TEST(Hash, ABalancedTableGivesEveryExpertAsMuchOfTheData) {
  GateOptions options = options_for("hash");
  std::vector<std::int64_t> counts(200);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<std::int64_t>(100000 / (i + 10));
  const StateSource source{.seed = 4, .layer = 1, .vocab_size = 200, .token_counts = counts};
  const std::vector<float> table = first_state(options, source);
  std::vector<std::int64_t> load(8, 0);
  for (std::size_t i = 0; i < 200; ++i) load[static_cast<std::size_t>(table[i])] += counts[i];
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  EXPECT_LT(*most - *least, *least / 50);
  EXPECT_EQ(first_state(options, source), table);
  StateSource other = source;
  other.layer = 2;
  EXPECT_NE(first_state(options, other), table);
  other.token_counts = {};
  EXPECT_THROW(first_state(options, other), InvalidArgument);
  options.hash_table = HashTable::kRandom;
  const std::vector<float> random = first_state(options, other);
  EXPECT_EQ(std::set<float>(random.begin(), random.end()).size(), 8u);
}

TEST(Hash, TheTokenIdAloneDecides) {
  const GateOptions options = options_for("hash");
  const std::vector<float> table{3, 0, 7};
  const std::vector<std::int64_t> ids{2, 0, 1, 2};
  EXPECT_EQ(choose(options, {.logits = {}, .state = table, .token_ids = ids}).expert_ids, (Ids{7, 3, 0, 7}));
  const std::vector<std::int64_t> outside{3};
  EXPECT_THROW(choose(options, {.logits = {}, .state = table, .token_ids = outside}), InvalidArgument);
  const std::vector<float> broken{8, 0.5f};
  for (const std::int64_t id : {0, 1}) {
    const std::vector<std::int64_t> one{id};
    EXPECT_THROW(choose(options, {.logits = {}, .state = broken, .token_ids = one}), InvalidArgument);
  }
}

TEST(DenseToSparse, KeepsWhatIsAboveTheThresholdAndAlwaysTheBest) {
  GateOptions options = options_for("dense_to_sparse");
  for (const double threshold : {0.0, 0.05, 0.2, 0.9}) {
    options.threshold = threshold;
    const std::vector<float> logits = random_logits(41, 30 * 8);
    const Choices choices = choose(options, {.logits = logits});
    std::int64_t most = 1;
    for (std::size_t t = 0; t < 30; ++t) {
      const std::vector<double> q = softmax(logits.data() + t * 8, 8);
      Ids expected;
      for (std::int32_t e = 0; e < 8; ++e) {
        if (q[static_cast<std::size_t>(e)] > threshold || largest(q, 1)[0] == e) expected.push_back(e);
      }
      most = std::max(most, std::ssize(expected));
      expected.resize(static_cast<std::size_t>(choices.num_choices), -1);
      const auto row = choices.expert_ids.begin() + static_cast<std::ptrdiff_t>(t) * choices.num_choices;
      EXPECT_EQ(Ids(row, row + choices.num_choices), expected);
    }
    EXPECT_EQ(choices.num_choices, most);
    EXPECT_EQ(choices.rounds, 1);
  }
}

TEST(DenseToSparse, CoolsFromTheFirstTemperatureToTheLastAndEndsWithOneExpert) {
  GateOptions options = options_for("dense_to_sparse");
  options.cooling_steps = 10;
  options.sparse_after = 20;
  const Gate& gate = gate_named("dense_to_sparse");
  EXPECT_DOUBLE_EQ(gate.temperature(options, 0), 2.0);
  EXPECT_DOUBLE_EQ(gate.temperature(options, 5), 1.15);
  EXPECT_DOUBLE_EQ(gate.temperature(options, 50), 0.3);
  options.cooling = Cooling::kExponential;
  EXPECT_NEAR(gate.temperature(options, 5), std::sqrt(0.6), 1e-12);
  options.threshold = 0.0;
  const std::vector<float> logits{0, 3, 1, 0, 0, 0, 0, 0};
  EXPECT_EQ(choose(options, {.logits = logits, .step = 19}).num_choices, 8);
  EXPECT_EQ(choose(options, {.logits = logits, .step = 20}).expert_ids, (Ids{1}));
}

TEST(DenseToSparse, NoiseIsGumbelAndFollowsTheToken) {
  const GateOptions options = options_for("dense_to_sparse");
  const Gate& gate = gate_named("dense_to_sparse");
  std::vector<float> noise(80000), tail(79200);
  gate.noise(options, {.logits = {}, .seed = 3, .lane = 5}, noise);
  gate.noise(options, {.logits = {}, .seed = 3, .lane = 5, .first_token = 100}, tail);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), noise.begin() + 800));
  double mean = 0, square = 0;
  for (const float g : noise) mean += g / 80000.0;
  for (const float g : noise) square += (g - mean) * (g - mean) / 80000.0;
  EXPECT_NEAR(mean, 0.57722, 0.02);
  EXPECT_NEAR(square, 3.14159265 * 3.14159265 / 6.0, 0.05);
}

TEST(ExpertChoice, EveryExpertTakesItsBestTokensAndEqualOnesGoToTheEarliest) {
  GateOptions options = options_for("expert_choice");
  options.capacity_factor = 1.0;  // ceil(2 * 20 / 8) = 5
  const std::vector<float> logits = random_logits(51, 20 * 8);
  const Assignment assignment = assign(options, logits);
  for (std::size_t e = 0; e < 8; ++e) {
    std::vector<double> p;
    for (std::size_t t = 0; t < 20; ++t) p.push_back(softmax(logits.data() + t * 8, 8)[e]);
    const Ids best = largest(p, 5);
    EXPECT_EQ(assignment[e], std::vector<std::int64_t>(best.begin(), best.end())) << "expert " << e;
  }
  const Assignment tied = assign(options, std::vector<float>(20 * 8, 1.0f));
  for (const auto& tokens : tied) EXPECT_EQ(tokens, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace moesaic::testing
