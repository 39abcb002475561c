#include "moesaic/infer/generate.h"

#include <gtest/gtest.h>

#include <mutex>

#include "moesaic/core/error.h"
#include "moesaic/train/threads.h"
#include "tests/comm/worlds.h"

namespace moesaic::testing {
namespace {

ModelConfig model_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.d_model = 32;
  config.num_heads = 2;
  config.vocab_size = 40;
  config.max_seq_len = 12;
  config.init_std = 0.3;  // far from uniform logits: rounding changes no choice
  config.moe.d_expert = 16;
  config.moe.gate.num_experts = 4;
  return config;
}

using Outputs = std::vector<std::vector<std::int64_t>>;

// What every rank returned, checked to be the same on all.
Outputs generate_on(int ranks, ExpertsMode mode, const std::vector<Prompt>& prompts,
                    const GenerateOptions& options) {
  std::mutex mutex;
  std::vector<Outputs> returned;
  run_world(Topology::one_node(ranks), [&](Communicator& world) {
    limit_compute_threads(1);
    ShardedModel model(model_config(), {{mode, mode}, 0, DType::kF32}, world);
    model.initialise(5);
    const Outputs outputs = generate(model, std::vector<std::vector<float>>(2), prompts, options);
    const std::lock_guard lock(mutex);
    returned.push_back(outputs);
  });
  for (const Outputs& outputs : returned) EXPECT_EQ(outputs, returned.front());
  return returned.front();
}

const std::vector<Prompt> kPrompts = {{{1, 2, 3}, 3}, {{4}, 10}, {{7, 8, 9, 10, 11}, 0}, {{5, 6}, 20}};

TEST(Generate, RanksThatFinishEarlyKeepJoining) {
  const std::vector<Prompt> prompts = {{{1, 2, 3}, 3}, {{4, 5}, 10}};
  for (const ExpertsMode mode : {ExpertsMode::kExchange, ExpertsMode::kGather}) {
    const Outputs outputs = generate_on(2, mode, prompts, {});
    EXPECT_EQ(outputs[0].size(), 3u);
    EXPECT_EQ(outputs[1].size(), 10u);
  }
}

TEST(Generate, GivesTheSameTokensInEveryLayoutGreedyOrDrawn) {
  for (const GenerateOptions& options : {GenerateOptions{}, GenerateOptions{1.0, 9}}) {
    const Outputs one = generate_on(1, ExpertsMode::kGather, kPrompts, options);
    for (const int ranks : {2, 3, 4}) {
      EXPECT_EQ(generate_on(ranks, ExpertsMode::kExchange, kPrompts, options), one) << ranks << " ranks";
    }
    EXPECT_EQ(generate_on(3, ExpertsMode::kGather, kPrompts, options), one);
    EXPECT_EQ(one[3].size(), 20u);  // past max_seq_len: the window slides
  }
}

TEST(Generate, APromptsOutputDoesNotDependOnItsCompany) {
  const Outputs together = generate_on(1, ExpertsMode::kGather, kPrompts, {});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(generate_on(1, ExpertsMode::kGather, {kPrompts[i]}, {})[0], together[i]) << "prompt " << i;
  }
}

TEST(Generate, AnotherSeedDrawsOtherTokens) {
  const std::vector<Prompt> prompts = {{{1}, 10}};
  EXPECT_NE(generate_on(1, ExpertsMode::kGather, prompts, {1.0, 1}),
            generate_on(1, ExpertsMode::kGather, prompts, {1.0, 2}));
}

TEST(Generate, RefusesBadPromptsNamingThem) {
  const auto refused = [](const std::vector<Prompt>& prompts, const GenerateOptions& options = {}) {
    EXPECT_THROW(generate_on(1, ExpertsMode::kGather, prompts, options), InvalidArgument);
  };
  refused({{{}, 3}});
  refused({{{40}, 3}});
  refused({{{-1}, 3}});
  refused({{{1}, -3}});
  refused({{{1}, 3}}, {-0.5, 0});
}

}  // namespace
}  // namespace moesaic::testing
