// Contract 2: the layout does not matter. Contract 1: one layout, the same bits.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

const std::vector<Layout> kLayouts = {
    {"2 ranks, exchange", 2, {"exchange"}},
    {"4 ranks, exchange over 2 x data 2", 4, {"exchange"}, 2},
    {"4 ranks, gather", 4, {"gather"}},
    {"4 ranks, gather, two owners per expert", 4, {"gather"}, 2},
    {"3 ranks, exchange, uneven sequences", 3, {"exchange"}},
    {"4 ranks, one layer each way", 4, {"gather", "exchange"}, 2},
    {"4 ranks on 2 nodes, exchange", 4, {"exchange"}, 2, 2},
    {"7 ranks, whole copies of the experts", 7, {"exchange"}},
};

class EveryLayout : public ::testing::TestWithParam<Layout> {
 protected:
  TempFolder folder_;
  Config config_ = small_config(write_text(folder_.path()));
};

INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout, ::testing::ValuesIn(kLayouts), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
});

TEST_P(EveryLayout, GradientsAndLossesEqualThoseOfOneRank) {
  const Outcome one = train(config_, 20);
  const Outcome many = train(with_layout(config_, GetParam()), 20);
  expect_close(one.gradients, many.gradients, 1e-5f);
  EXPECT_NEAR(many.steps[0].loss, one.steps[0].loss, 1e-5 * one.steps[0].loss);
  EXPECT_NEAR(many.steps[0].gradient_norm, one.steps[0].gradient_norm, 1e-5 * one.steps[0].gradient_norm);
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    // The fixture's margins: no token changes its experts, so rounding is all there is.
    ASSERT_EQ(many.steps[i].chosen, one.steps[i].chosen) << "step " << i + 1;
    ASSERT_EQ(many.steps[i].dropped, one.steps[i].dropped) << "step " << i + 1;
    EXPECT_NEAR(many.steps[i].loss, one.steps[i].loss, 1e-4 * one.steps[i].loss) << "step " << i + 1;
    EXPECT_NEAR(many.steps[i].balance_loss, one.steps[i].balance_loss, 1e-4 * one.steps[i].balance_loss);
    EXPECT_NEAR(many.steps[i].z_loss, one.steps[i].z_loss, 1e-4 * one.steps[i].z_loss);
  }
  // The fixture does what it says: choices are dropped, clipping is active, the model learns.
  EXPECT_GT(one.steps[0].dropped, 0);
  EXPECT_GT(one.steps[0].gradient_norm, config_.optim.clip_norm);
  EXPECT_LT(one.steps.back().loss, one.steps.front().loss - 0.5);
}

// Norms of the parts differ from rank to rank; clipping by them would pull shared weights apart.
TEST_P(EveryLayout, AllRanksClipByOneNormAndReportOneLoss) {
  std::mutex mutex;
  std::vector<std::pair<double, double>> reported;
  on_ranks(with_layout(config_, GetParam()), [&](Trainer& trainer) {
    trainer.model().initialise(1);
    const StepReport report = trainer.step();
    const std::lock_guard lock(mutex);
    reported.emplace_back(report.gradient_norm, report.loss);
  });
  ASSERT_EQ(std::ssize(reported), GetParam().ranks);
  EXPECT_GT(reported[0].first, config_.optim.clip_norm);
  for (const auto& of_rank : reported) EXPECT_EQ(of_rank, reported[0]);
}

TEST_P(EveryLayout, RunAgainGivesTheSameBits) {
  const Config config = with_layout(config_, GetParam());
  expect_same_bits(train(config, 6), train(config, 6));
}

TEST_P(EveryLayout, OverlapChangesNoBit) {
  const Config overlapped = with_layout(config_, GetParam());
  Config waiting = overlapped;
  waiting.comm.overlap = false;
  expect_same_bits(train(overlapped, 4), train(waiting, 4));
}

TEST_P(EveryLayout, TrainsInBf16) {
  Config config = with_layout(config_, GetParam());
  config.train.dtype = DType::kBF16;
  const Outcome outcome = train(config, 6);
  EXPECT_TRUE(std::isfinite(outcome.steps.back().loss));
  EXPECT_LT(outcome.steps.back().loss, outcome.steps.front().loss);
}

TEST(Layouts, AdamWWithTiedEmbeddingsSharedExpertsAndADenseLayerAgreesToo) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.model.tie_embeddings = true;
  config.model.num_layers = 3;
  config.model.num_dense_layers = 1;
  config.model.d_ff = 40;
  config.model.moe.num_shared_experts = 1;
  config.model.moe.d_shared = 24;
  config.model.moe.gate.capacity_factor = 0;
  config.optim.name = OptimizerKind::kAdamW;
  config.optim.lr = 1e-3;
  const Outcome one = train(config, 5);
  const Outcome four = train(with_layout(config, {"", 4, {"exchange"}, 2}), 5);
  expect_close(one.gradients, four.gradients, 1e-5f);
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_NEAR(four.steps[i].loss, one.steps[i].loss, 1e-4 * one.steps[i].loss);
  }
}

TEST(Layouts, SgdWithoutMomentumTrains) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.optim.momentum = 0;
  const Outcome one = train(config, 5), three = train(with_layout(config, {"", 3, {"gather"}}), 5);
  EXPECT_LT(one.steps.back().loss, one.steps.front().loss);
  EXPECT_NEAR(three.steps.back().loss, one.steps.back().loss, 1e-4 * one.steps.back().loss);
}

TEST(Layouts, BiasBalancingAgreesExactlyInCounts) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.model.moe.gate.capacity_factor = 0;
  config.model.moe.gate.score = ScoreKind::kSigmoid;
  config.model.moe.gate.bias_balance = true;
  config.model.moe.gate.bias_update_rate = 0.01;
  const Outcome one = train(config, 8);
  const Outcome four = train(with_layout(config, {"", 4, {"exchange"}, 2}), 8);
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_EQ(four.steps[i].chosen, one.steps[i].chosen) << "step " << i + 1;
    EXPECT_NEAR(four.steps[i].loss, one.steps[i].loss, 1e-4 * one.steps[i].loss);
  }
}

TEST(Layouts, AccumulationEqualsTheLargeBatchWithoutCapacityAndBalance) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.model.moe.gate.capacity_factor =
      0;  // capacity and the balance loss depend on what a micro-step holds
  config.model.moe.balance_loss = 0;
  Config pieces = with_layout(config, {"", 2, {"exchange"}});
  pieces.train.accumulation = 4;
  const Outcome whole = train(config, 5), cut = train(pieces, 5);
  expect_close(whole.gradients, cut.gradients, 1e-5f);
  for (std::size_t i = 0; i < whole.steps.size(); ++i) {
    EXPECT_NEAR(cut.steps[i].loss, whole.steps[i].loss, 1e-4 * whole.steps[i].loss);
  }
}

TEST(Layouts, AccumulationEqualsTheLargeBatchWithBalanceOfSequencesZLossAndSharedExperts) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.model.moe.gate.capacity_factor = 0;
  config.model.moe.balance_scope = BalanceScope::kSequence;
  config.model.moe.balance_loss = 0.1;
  config.model.moe.z_loss = 0.01;
  config.model.moe.num_shared_experts = 1;
  const Outcome whole = train(config, 5);
  for (const Layout& layout : {Layout{"", 1}, Layout{"", 4, {"gather", "exchange"}, 2}}) {
    Config pieces = with_layout(config, layout);
    pieces.train.accumulation = 2;
    const Outcome cut = train(pieces, 5);
    expect_close(whole.gradients, cut.gradients, 1e-5f);
    for (std::size_t i = 0; i < whole.steps.size(); ++i) {
      EXPECT_NEAR(cut.steps[i].loss, whole.steps[i].loss, 1e-4 * whole.steps[i].loss);
      EXPECT_NEAR(cut.steps[i].balance_loss, whole.steps[i].balance_loss, 1e-4 * whole.steps[i].balance_loss);
      EXPECT_NEAR(cut.steps[i].z_loss, whole.steps[i].z_loss, 1e-4 * whole.steps[i].z_loss);
    }
  }
}

// Capacity limits the rows of a micro-step: which choices are dropped depends on who shares it.
TEST(Layouts, WithCapacityAccumulationIsAnotherRunThatDropsOtherChoices) {
  const TempFolder folder;
  const Config config = small_config(write_text(folder.path()));
  Config pieces = config;
  pieces.train.accumulation = 4;
  const StepReport whole = train(config, 1).steps[0], cut = train(pieces, 1).steps[0];
  EXPECT_EQ(cut.chosen[0], whole.chosen[0]);  // the first layer sees the same tokens
  EXPECT_NE(cut.dropped, whole.dropped);
  EXPECT_NE(cut.loss, whole.loss);
}

TEST(Layouts, MoreRanksThanSequencesJoinWithZeroTokens) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.train.batch_tokens = 32;  // two sequences
  const Outcome one = train(config, 4);
  for (const char* way : {"exchange", "gather"}) {
    const Outcome four = train(with_layout(config, {"", 4, {way}, 2}), 4);
    expect_close(one.gradients, four.gradients, 1e-5f);
    EXPECT_NEAR(four.steps.back().loss, one.steps.back().loss, 1e-4 * one.steps.back().loss);
  }
}

TEST(Layouts, HeldOutLossDoesNotDependOnTheLayout) {
  const TempFolder folder;
  const Config config = small_config(write_text(folder.path()));
  std::vector<double> losses;
  for (const Layout& layout : {Layout{"", 1}, Layout{"", 3, {"exchange"}}}) {
    on_ranks(with_layout(config, layout), [&](Trainer& trainer) {
      trainer.model().initialise(1);
      const auto held_out = trainer.evaluate(0);
      if (trainer.world().rank() == 0) losses.push_back(held_out.back().loss);
    });
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
}

}  // namespace
}  // namespace moesaic::testing
