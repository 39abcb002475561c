// What holds for every gate, over ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "moesaic/core/error.h"
#include "tests/routing/gates.h"

namespace moesaic::testing {
namespace {

class EveryGate : public ::testing::TestWithParam<std::string> {
 protected:
  GateOptions options_ = options_for(GetParam());
};
class GateWithRouter : public EveryGate {};

INSTANTIATE_TEST_SUITE_P(Gates, GateWithRouter, ::testing::ValuesIn(gates_where(has_router)),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Gates, EveryGate, ::testing::ValuesIn(gate_names()),
                         [](const auto& info) { return info.param; });

TEST_P(EveryGate, SlotsWithinAnExpertNeverCollideAndStayBelowItsCapacity) {
  const Tokens tokens(options_, 40);
  const std::int64_t capacity = expert_capacity(options_, 39);
  for (const auto& split : kGateSplits) {
    const Ranks ranks(tokens, split);
    std::vector<std::set<std::int64_t>> slots_of(8);
    for (std::size_t r = 0; r < split.size(); ++r) {
      const auto slots = slots_wanted(options_, ranks.choices[r], ranks.gathered, static_cast<int>(r),
                                      static_cast<int>(split.size()));
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const std::int32_t e = ranks.plans[r].expert_ids[i];
        if (e < 0) continue;
        EXPECT_TRUE(slots_of[static_cast<std::size_t>(e)].insert(slots[i]).second)
            << "slot " << slots[i] << " of expert " << e << " given twice";
        EXPECT_TRUE(capacity < 0 || slots[i] < capacity);
      }
    }
  }
}

TEST_P(EveryGate, ATokenNeverHasAnExpertTwice) {
  for (const Ids& ids : Ranks(Tokens(options_, 40), {40}).kept()) {
    EXPECT_EQ(std::set<std::int32_t>(ids.begin(), ids.end()).size(), ids.size());
  }
}

// base is exempt as nn deals its tokens out; this hands all of them to one auction.
TEST_P(EveryGate, TheSpreadOfTokensOverRanksChangesNothing) {
  const Tokens tokens(options_, 40);
  const auto one = Ranks(tokens, {40}).kept();
  for (const auto& split : kGateSplits) EXPECT_EQ(Ranks(tokens, split).kept(), one);
}

TEST_P(EveryGate, ScoresInsteadOfOrderFillExpertsInEveryLayoutAlike) {
  const Gate& gate = gate_named(GetParam());
  options_.priority = Priority::kScore;
  if (!gate.ordered || !gate.has_router || options_.capacity_factor == 0.0) {
    EXPECT_THROW(validate(options_), InvalidArgument);
    return;
  }
  const Tokens tokens(options_, 40);
  const auto one = Ranks(tokens, {40}).kept();
  for (const auto& split : kGateSplits) EXPECT_EQ(Ranks(tokens, split).kept(), one);
  GateOptions by_order = options_;
  by_order.priority = Priority::kOrder;
  EXPECT_NE(Ranks(Tokens(by_order, 40), {40}).kept(), one);
}

TEST_P(EveryGate, PaddingHasNoExpert) { EXPECT_TRUE(Ranks(Tokens(options_, 40), {40}).kept()[4].empty()); }

TEST_P(EveryGate, NoTokensGiveNoChoices) {
  const Ranks ranks(Tokens(options_, 40), {0, 40, 0});
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_TRUE(ranks.plans[r].expert_ids.empty());
    EXPECT_EQ(ranks.plans[r].kept, std::vector<std::int64_t>(8, 0));
  }
}

TEST_P(GateWithRouter, TiesGoToTheLowestExpert) {
  options_.capacity_factor = 0.0;
  if (GetParam() == "dense_to_sparse") options_.threshold = 0.9;
  const GateOptions alone = dropless(options_);
  const Choices choices = choose(alone, {.logits = std::vector<float>(8, 0.25f)});
  Ids expected(static_cast<std::size_t>(choices.num_choices));
  std::iota(expected.begin(), expected.end(), 0);
  if (GetParam() == "k_top_1") expected = {0, 4};
  EXPECT_EQ(choices.expert_ids, expected);
}

TEST_P(EveryGate, InferenceChoosesForEachTokenAsIfItWereAlone) {
  const GateOptions alone = dropless(options_);
  EXPECT_EQ(alone.capacity_factor, 0.0);
  EXPECT_EQ(gathering(alone, false), Gathering::kNone);
  const Tokens tokens(options_, 40);
  GateInput all = tokens.part(0, 40), third = tokens.part(2, 1);
  all.training = third.training = false;
  const Choices of_all = choose(alone, all), of_one = choose(alone, third);
  for (std::int64_t k = 0; k < of_one.num_choices; ++k) {
    EXPECT_EQ(of_all.expert_ids[static_cast<std::size_t>(2 * of_all.num_choices + k)],
              of_one.expert_ids[static_cast<std::size_t>(k)]);
  }
}

TEST_P(EveryGate, WeightsFollowTheFormulaInDoublePrecision) {
  const Tokens tokens(options_, 40);
  Ranks ranks(tokens, {40});
  RoutingPlan& plan = ranks.plans[0];
  const Choices& choices = ranks.choices[0];
  weigh(options_, tokens.logits, choices, plan);
  for (std::int64_t t = 0; t < 40; ++t) {
    for (std::int64_t k = 0; k < plan.num_choices; ++k) {
      const auto i = static_cast<std::size_t>(t * plan.num_choices + k);
      const std::int32_t e = plan.expert_ids[i];
      const auto h = [&](std::int64_t j) {
        return std::exp(static_cast<double>(tokens.logits[static_cast<std::size_t>(t * 8 + j)]));
      };
      const auto sum = [&](std::int64_t begin, std::int64_t end) {
        double s = 0;
        for (std::int64_t j = begin; j < end; ++j) s += h(j);
        return s;
      };
      double expected = 0.0;
      if (e < 0) {
        expected = 0.0;
      } else if (GetParam() == "hash") {
        expected = 1.0;
      } else if (GetParam() == "base") {
        expected = h(e) / (1.0 + h(e));
      } else if (GetParam() == "gshard") {
        // Of the two best, also where the second is left out.
        std::vector<double> all;
        for (std::int64_t j = 0; j < 8; ++j) all.push_back(h(j));
        std::ranges::sort(all, std::greater{});
        expected = h(e) / (all[0] + all[1]);
      } else if (GetParam() == "k_top_1") {
        expected = h(e) / sum(e / 4 * 4, e / 4 * 4 + 4);
      } else {
        expected = h(e) / sum(0, 8);
      }
      EXPECT_NEAR(plan.weights[i], expected, 1e-6) << "token " << t << " choice " << k;
    }
  }
}

TEST(Gates, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  GateOptions options;
  options.name = "swich";
  try {
    validate(options);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("\"swich\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("switch, gshard, top_k"), std::string::npos) << error.what();
  }
}

TEST(Gates, WhatAGateDoesNotTakeIsRefused) {
  const auto refused = [](const std::string& name, auto change) {
    GateOptions options = options_for(name);
    EXPECT_NO_THROW(validate(options)) << name;
    change(options);
    EXPECT_THROW(validate(options), InvalidArgument) << name;
  };
  refused("gshard", [](auto& o) { o.top_k = 3; });
  refused("k_top_1", [](auto& o) { o.top_k = 3; });
  refused("k_top_1", [](auto& o) { o.normalise = Normalise::kBeforeDrop; });
  refused("sam", [](auto& o) { o.top_k = 5; });  // 4 in a group
  refused("sam", [](auto& o) { o.num_groups = 3; });
  refused("sam", [](auto& o) { o.score = ScoreKind::kSigmoid; });
  refused("base", [](auto& o) { o.capacity_factor = 1.0; });
  refused("hash", [](auto& o) { o.top_k = 2; });
  refused("dense_to_sparse", [](auto& o) { o.threshold = 1.0; });
  refused("sam", [](auto& o) { o.kept_groups = 2; });
  refused("dense_to_sparse", [](auto& o) { o.last_temperature = 0.0; });
  refused("expert_choice", [](auto& o) { o.capacity_factor = 0.0; });
  refused("top_k", [](auto& o) { o.num_groups = 2; });  // softmax scores
  refused("top_k", [](auto& o) {
    o.score = ScoreKind::kSigmoid;
    o.num_groups = 4;  // one of them has 2 experts
    o.top_k = 3;
  });
}

// Every option that only some gates read, with a value that is not its default.
struct OwnOption {
  std::string key, readers;
  void (*change)(GateOptions&);
};
const std::vector<OwnOption> kOwnOptions{
    {"score", "top_k", [](auto& o) { o.score = ScoreKind::kSigmoid; }},
    {"route_scale", "top_k", [](auto& o) { o.route_scale = 2.0; }},
    {"bias_balance", "top_k", [](auto& o) { o.bias_balance = true; }},
    {"bias_update_rate", "top_k", [](auto& o) { o.bias_update_rate = 0.01; }},
    {"bias_centred", "top_k", [](auto& o) { o.bias_centred = true; }},
    {"num_groups", "top_k sam", [](auto& o) { o.num_groups = 4; }},
    {"kept_groups", "top_k", [](auto& o) { o.num_groups = o.kept_groups = 4; }},
    {"alignment_loss", "sam", [](auto& o) { o.alignment_loss = 0.5; }},
    {"random_second", "gshard", [](auto& o) { o.random_second = true; }},
    {"hash_table", "hash", [](auto& o) { o.hash_table = HashTable::kRandom; }},
    {"threshold", "dense_to_sparse", [](auto& o) { o.threshold = 0.2; }},
    {"first_temperature", "dense_to_sparse", [](auto& o) { o.first_temperature = 3.0; }},
    {"last_temperature", "dense_to_sparse", [](auto& o) { o.last_temperature = 0.2; }},
    {"cooling_steps", "dense_to_sparse", [](auto& o) { o.cooling_steps = 7; }},
    {"cooling", "dense_to_sparse", [](auto& o) { o.cooling = Cooling::kExponential; }},
    {"sparse_after", "dense_to_sparse", [](auto& o) { o.sparse_after = 9; }},
};

TEST_P(EveryGate, RefusesOptionsThatOnlyOtherGatesRead) {
  for (const OwnOption& own : kOwnOptions) {
    if ((" " + own.readers + " ").find(" " + GetParam() + " ") != std::string::npos) continue;
    SCOPED_TRACE(own.key);
    GateOptions options = options_;
    own.change(options);
    try {
      validate(options);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("with the " + GetParam() + " gate, expected"), std::string::npos) << text;
    }
    EXPECT_NO_THROW(validate(without_foreign_options(options)));
  }
}

TEST(Gates, ARefusedOptionIsNamedWithBothValuesAndItsReaders) {
  GateOptions options = options_for("hash");
  options.num_groups = 4;
  try {
    validate(options);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "gate: num_groups is 4 with the hash gate, expected 1: only top_k or sam reads it");
  }
}

TEST(Gates, WhatAnotherGateReadsGoesBackToItsDefaultAndNothingElse) {
  GateOptions options = options_for("sam");  // num_groups = 2
  options.name = "dense_to_sparse";
  options.threshold = 0.3;
  options.capacity_factor = 3.0;
  const GateOptions left = without_foreign_options(options);
  EXPECT_EQ(left.num_groups, 1);
  EXPECT_EQ(left.threshold, 0.3);
  EXPECT_EQ(left.capacity_factor, 3.0);
  EXPECT_EQ(left.top_k, 2);
}

TEST(Gates, InferenceOfExpertChoiceLimitsNoGroupsWhateverItsOptionsSay) {
  GateOptions options = options_for("expert_choice");
  options.num_groups = 2;  // which top_k, its stand-in, would read and refuse with softmax scores
  EXPECT_EQ(choose(dropless(options), {.logits = std::vector<float>{3, 0, 0, 0, 0, 2, 0, 0}}).expert_ids,
            (Ids{0, 5}));
}

TEST(Priority, TheLargestScoresStayAndEqualOnesGoByOrder) {
  GateOptions options;
  options.num_experts = 2;
  options.top_k = 1;
  options.capacity_factor = 1.0;  // of 4 tokens: 2 per expert
  options.priority = Priority::kScore;
  const std::vector<float> logits{1, 0, /**/ 2, 0, /**/ 1, 0, /**/ 3, 0};
  const Choices choices = choose(options, {.logits = logits});
  const ScoredChoices scored{1, {4}, choices.expert_ids, choice_scores(options, logits, choices)};
  EXPECT_EQ(slots_by_score(options, scored, 0), (std::vector<std::int64_t>{2, 1, 3, 0}));
  const RoutingPlan plan = admit(options, choices, choices.counts, 4, 0, 1, &scored);
  EXPECT_EQ(plan.expert_ids, (Ids{-1, 0, -1, 0}));
  EXPECT_EQ(plan.dropped_capacity, 2);
  EXPECT_THROW(admit(options, choices, choices.counts, 4, 0, 1), InvalidArgument);
}

}  // namespace
}  // namespace moesaic::testing
