#include <malloc.h>

#include "moesaic/core/error.h"
#include "tests/nn/oracle.h"

namespace moesaic::testing {
namespace {

ModelConfig tiny() {
  ModelConfig c;
  c.vocab_size = 13;
  c.num_layers = 2;
  c.d_model = 16;
  c.num_heads = 2;
  c.max_seq_len = 8;
  c.init_std = 0.3;
  c.moe.gate.num_experts = 5;
  c.moe.gate.top_k = 2;
  c.moe.d_expert = 12;
  c.moe.balance_loss = 0.5;
  c.moe.z_loss = 0.1;
  return c;
}

const std::vector<std::vector<std::int64_t>> kSplits{{6}, {2, 4}, {3, 0, 3}, {1, 2, 0, 3}};

void expect_oracle_on_every_split(const ModelConfig& config) {
  const Batch batch = batch_of(config, 6, 4);
  const Pass oracle = oracle_pass(config, batch);
  for (const auto& split : kSplits) {
    SCOPED_TRACE(fmt::format("{} ranks", split.size()));
    const Pass pass = run_ranks(config, batch, split);
    expect_close(pass.hidden, oracle.hidden, 1e-5, "hidden states");
    expect_same_step(pass, oracle);
  }
}

TEST(Model, OneToFourRanksEqualThePlainModelInLossAndEveryGradient) { expect_oracle_on_every_split(tiny()); }

TEST(Model, DenseFirstLayerSharedExpertsTiedEmbeddingsAndClippingEqualThePlainModel) {
  ModelConfig c = tiny();
  c.num_dense_layers = 1;
  c.d_ff = 20;
  c.moe.num_shared_experts = 2;
  c.moe.d_shared = 6;
  c.tie_embeddings = true;
  c.clip_qkv = 0.8;
  expect_oracle_on_every_split(c);
}

TEST(Model, ReluExpertsWithoutQkNormEqualThePlainModel) {
  ModelConfig c = tiny();
  c.activation = Activation::kRelu;
  c.qk_norm = false;
  c.moe.gate.top_k = 3;
  expect_oracle_on_every_split(c);
}

TEST(Model, TheSameRunGivesTheSameBitsAndEvaluationInBetweenChangesNothing) {
  const ModelConfig c = tiny();
  const Batch batch = batch_of(c, 4, 4);
  const Pass first = run_ranks(c, batch, {1, 3});
  PassOptions evaluation;
  evaluation.training = false;
  const Pass evaluated = run_ranks(c, batch, {1, 3}, evaluation);
  EXPECT_EQ(evaluated.loss, first.loss);
  EXPECT_EQ(evaluated.auxiliary, 0.0);
  const Pass second = run_ranks(c, batch, {1, 3});
  EXPECT_EQ(first.loss, second.loss);
  for (const auto& [name, g] : first.gradients) EXPECT_TRUE(at::equal(g, second.gradients.at(name))) << name;
}

TEST(Model, NoTokensOnAnyRankGivesZeroLossAndZeroGradients) {
  const ModelConfig c = tiny();
  const Pass pass = run_ranks(c, batch_of(c, 0, 4), {0, 0});
  EXPECT_EQ(pass.loss, 0.0);
  EXPECT_EQ(pass.auxiliary, 0.0);
  for (const auto& [name, g] : pass.gradients) EXPECT_EQ(g.abs().max().item<float>(), 0.0f) << name;
}

TEST(Model, CapacityDropsTheSameChoicesInEveryLayout) {
  ModelConfig c = tiny();
  c.moe.gate.capacity_factor = 0.8;
  for (const Normalise normalise : {Normalise::kNone, Normalise::kBeforeDrop, Normalise::kAfterDrop}) {
    c.moe.gate.normalise = normalise;
    const Batch batch = batch_of(c, 6, 4);
    const Pass one = run_ranks(c, batch, {6});
    ASSERT_GT(one.stats[0].dropped, 0);
    for (const auto& split : kSplits) {
      const Pass pass = run_ranks(c, batch, split);
      expect_same_step(pass, one);
      for (std::size_t l = 0; l < 2; ++l) {
        EXPECT_EQ(pass.stats[l].dropped, one.stats[l].dropped);
        EXPECT_EQ(pass.stats[l].chosen, one.stats[l].chosen);
      }
    }
  }
}

TEST(Model, JitterFollowsTheTokenNotTheRankAndStaysOutOfEvaluation) {
  ModelConfig c = tiny();
  const Batch batch = batch_of(c, 6, 4);
  const Pass still = run_ranks(c, batch, {6});
  c.moe.jitter = 0.3;
  const Pass one = run_ranks(c, batch, {6});
  EXPECT_NE(one.auxiliary, still.auxiliary);
  expect_same_step(run_ranks(c, batch, {1, 2, 0, 3}), one);
  PassOptions evaluation;
  evaluation.training = false;
  EXPECT_EQ(run_ranks(c, batch, {6}, evaluation).loss, still.loss);
}

TEST(Model, ExpertTwoOfFourEmptyHasGradientsOfExactlyZeroInPoisonedMemory) {
  ModelConfig c = tiny();
  c.moe.gate.num_experts = 4;
  c.moe.gate.top_k = 1;
  PassOptions options;
  options.edit = [](const std::string& name, UnitTensors& tensors) {
    const at::NoGradGuard no_grad;
    if (!name.ends_with("router")) return;
    tensors[0][2].zero_();  // logit 0 loses to the larger of h and -h
    tensors[0][3].copy_(-tensors[0][1]);
  };
  const Batch batch = batch_of(c, 4, 4);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);  // at::empty holds NaN
  mallopt(M_PERTURB, 1);                                                     // malloc holds -1.7e38
  const Pass pass = run_ranks(c, batch, {2, 2}, options);
  mallopt(M_PERTURB, 0);
  at::globalContext().setDeterministicAlgorithms(false, false);
  for (const char* layer : {"layers.0.", "layers.1."}) {
    for (const char* unit : {"gate_up 0", "down 0"}) {
      EXPECT_EQ(pass.gradients.at(std::string(layer) + unit)[2].abs().max().item<float>(), 0.0f)
          << layer << unit;
    }
  }
  EXPECT_EQ(pass.stats[0].chosen[2] + pass.stats[1].chosen[2], 0);
  expect_same_step(pass, run_ranks(c, batch, {2, 2}, options), 0.0);
}

TEST(Model, AllTokensToExpertZeroOnTwoRanksEqualsOneRank) {
  ModelConfig c = tiny();
  c.moe.gate.top_k = 1;
  PassOptions options;
  options.edit = [](const std::string& name, UnitTensors& tensors) {
    const at::NoGradGuard no_grad;
    if (name.ends_with("router")) tensors[0].zero_();  // all equal: ties go to expert 0
  };
  const Batch batch = batch_of(c, 4, 4);
  const Pass one = run_ranks(c, batch, {4}, options);
  EXPECT_EQ(one.stats[0].chosen, (std::vector<std::int64_t>{16, 0, 0, 0, 0}));
  expect_same_step(run_ranks(c, batch, {2, 2}, options), one);
}

TEST(Model, Bf16StaysNearFp32) {
  const ModelConfig c = tiny();
  const Batch batch = batch_of(c, 4, 4);
  PassOptions options;
  const Pass fp32 = run_ranks(c, batch, {2, 2}, options);
  options.dtype = at::kBFloat16;
  const Pass bf16 = run_ranks(c, batch, {2, 2}, options);
  EXPECT_NEAR(bf16.loss, fp32.loss, 0.03 * fp32.loss);
  expect_close(bf16.gradients.at("head 1"), fp32.gradients.at("head 1"), 0.1, "lm_head");
}

TEST(Model, NonFiniteLogitsAreAnErrorOnEveryRankNamingLayerRankAndToken) {
  const ModelConfig c = tiny();
  const Batch batch = batch_of(c, 4, 4);
  std::vector<std::string> messages(2);
  run_world(Topology::one_node(2), [&](Communicator& world) {
    PassOptions options;
    options.step_tokens = 16;
    options.step_targets = 15;
    if (world.rank() == 1) {  // a weight that only this rank sees as broken
      options.edit = [](const std::string& name, UnitTensors& tensors) {
        const at::NoGradGuard no_grad;
        if (name == "layers.1.router") tensors[0].fill_(NAN);
      };
    }
    try {
      run_pass(c, batch.part(2 * world.rank(), 2), world, options);
    } catch (const NonFinite& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_EQ(messages[0], "layer 1: the router logits of token 0 of rank 1 are not finite");
  EXPECT_EQ(messages[1], messages[0]);
}

TEST(Model, RightPaddingChangesNeitherLossesNorCountsNorGradients) {
  ModelConfig c = tiny();
  c.moe.gate.capacity_factor = 1.0;
  for (const BalanceScope scope : {BalanceScope::kGlobal, BalanceScope::kRank, BalanceScope::kSequence}) {
    c.moe.balance_scope = scope;
    const Batch plain = batch_of(c, 4, 5);
    Batch padded;
    padded.ids = at::cat({plain.ids, at::zeros({4, 3}, at::kLong)}, 1);
    padded.targets = at::cat({plain.targets, at::full({4, 3}, -1, at::kLong)}, 1);
    for (int t = 0; t < 32; ++t) padded.mask.push_back(t % 8 < 5);
    for (const auto& split : {std::vector<std::int64_t>{4}, std::vector<std::int64_t>{3, 1}}) {
      const Pass expected = run_ranks(c, plain, split), pass = run_ranks(c, padded, split);
      expect_same_step(pass, expected);
      for (std::size_t l = 0; l < 2; ++l) {
        EXPECT_EQ(pass.stats[l].chosen, expected.stats[l].chosen);
        EXPECT_EQ(pass.stats[l].dropped, expected.stats[l].dropped);
        EXPECT_NEAR(pass.stats[l].balance_loss, expected.stats[l].balance_loss, 1e-6);
        EXPECT_NEAR(pass.stats[l].z_loss, expected.stats[l].z_loss, 1e-5);
      }
    }
  }
}

TEST(Model, ZLossAndSequenceScopeAreEqualUnderAnySplitIntoMicroSteps) {
  ModelConfig c = tiny();
  c.moe.balance_scope = BalanceScope::kSequence;
  const Batch batch = batch_of(c, 6, 4);
  const Pass whole = run_ranks(c, batch, {6});
  for (const auto& cuts : {std::vector<std::int64_t>{3, 3}, std::vector<std::int64_t>{1, 4, 1}}) {
    Pass sum;
    std::int64_t begin = 0;
    for (const std::int64_t count : cuts) {
      PassOptions options;
      options.step_tokens = batch.routed();
      options.step_targets = (batch.targets >= 0).sum().item<std::int64_t>();
      sum.add(run_ranks(c, batch.part(begin, count), {count, 0}, options));
      begin += count;
    }
    expect_same_step(sum, whole);
  }
}

}  // namespace
}  // namespace moesaic::testing
