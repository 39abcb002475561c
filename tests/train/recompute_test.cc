// Layers computed again in the backward pass: the same gradients to the bit, less memory, nothing counted
// twice.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "moesaic/shard/memory_plan.h"
#include "moesaic/train/tensors.h"
#include "moesaic/train/walk.h"
#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

Config recomputed(Config config, std::vector<std::string> recompute = {"full"}) {
  config.train.recompute = std::move(recompute);
  return config;
}

void expect_equal(const Outcome& kept, const Outcome& again) {
  EXPECT_EQ(again.gradients, kept.gradients);
  expect_same_bits(again, kept);
  for (std::size_t i = 0; i < kept.steps.size(); ++i) {
    const StepReport &a = again.steps[i], &k = kept.steps[i];
    EXPECT_EQ(a.chosen, k.chosen);
    EXPECT_EQ(a.dropped, k.dropped);
    EXPECT_EQ(a.balance_loss, k.balance_loss);
    EXPECT_EQ(a.z_loss, k.z_loss);
  }
}

const std::vector<Layout> kLayouts = {{"1 rank", 1, {"gather"}},
                                      {"2 ranks, exchange", 2, {"exchange"}},
                                      {"3 ranks, exchange, uneven", 3, {"exchange"}},
                                      {"4 ranks, gather", 4, {"gather"}},
                                      {"4 ranks, one layer each way", 4, {"gather", "exchange"}, 2}};

class Recompute : public ::testing::TestWithParam<Layout> {
 protected:
  TempFolder folder_;
  Config config_ = with_layout(small_config(write_text(folder_.path())), GetParam());
};

INSTANTIATE_TEST_SUITE_P(Layouts, Recompute, ::testing::ValuesIn(kLayouts), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
});

TEST_P(Recompute, GivesTheSameBitsWithCapacity) {
  const Outcome kept = train(config_, 3);
  EXPECT_GT(kept.steps[0].dropped, 0);
  expect_equal(kept, train(recomputed(config_), 3));
  expect_equal(kept, train(recomputed(config_, {"none", "full"}), 3));
}

TEST_P(Recompute, GivesTheSameBitsInBf16WithJitterSharedExpertsAccumulationAndBiasBalancing) {
  config_.train.dtype = DType::kBF16;
  config_.train.accumulation = 2;
  config_.model.moe.jitter = 0.1;
  config_.model.moe.num_shared_experts = 1;
  config_.model.moe.d_shared = 24;
  config_.model.moe.gate.capacity_factor = 0;
  config_.model.moe.gate.score = ScoreKind::kSigmoid;
  config_.model.moe.gate.bias_balance = true;
  config_.model.moe.gate.bias_update_rate = 0.01;
  expect_equal(train(config_, 3), train(recomputed(config_), 3));
}

TEST_P(Recompute, GivesTheSameBitsInHuggingFacesConventionWhichCouplesLayers) {
  config_.model.moe.balance_convention = "hf";
  config_.model.num_dense_layers = 0;
  expect_equal(train(config_, 3), train(recomputed(config_, {"full", "none"}), 3));
  expect_equal(train(config_, 3), train(recomputed(config_), 3));
}

TEST_P(Recompute, RanksWithoutTokensJoin) {
  config_.train.batch_tokens = 16;  // one sequence
  expect_equal(train(config_, 2), train(recomputed(config_), 2));
}

// ---- memory ----

// Watches what torch allocates on this thread.
class TorchMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/, std::int64_t bytes, std::size_t /*allocated*/,
                         std::size_t /*reserved*/, c10::Device /*device*/) override {
    now_ += bytes;
    most_ = std::max(most_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t most() const { return most_; }

 private:
  std::int64_t now_ = 0, most_ = 0;
};

Config deep_config(const std::filesystem::path& folder) {
  Config config = small_config(write_text(folder));
  config.model.num_layers = 8;
  config.model.vocab_size = 128;
  config.model.moe.gate.capacity_factor = 0;
  return config;
}

// Most bytes of torch tensors at any moment of a step.
std::int64_t most_memory(const Config& config) {
  std::int64_t most = 0;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.model().initialise(1);
    trainer.step();
    const auto memory = std::make_shared<TorchMemory>();
    {
      const c10::DebugInfoGuard watched(c10::DebugInfoKind::PROFILER_STATE, memory);
      trainer.step();
    }
    most = memory->most();
  });
  return most;
}

TEST(RecomputeMemory, OneLayersActivationsInsteadOfAll) {
  const TempFolder folder;
  const Config config = deep_config(folder.path());
  const std::int64_t all = most_memory(config),
                     half = most_memory(recomputed(
                         config, {"full", "full", "full", "full", "none", "none", "none", "none"})),
                     one = most_memory(recomputed(config));
  EXPECT_LT(one * 3, all);
  EXPECT_LT(one, half);
  EXPECT_LT(half * 4, all * 3);
}

TEST(RecomputeMemory, ThePlanCountsIt) {
  const TempFolder folder;
  const Config config = deep_config(folder.path());
  const auto planned = [&](const Config& c) {
    return plan_memory(c.model, parallel_options(c), Topology::one_node(1), 0, 128, recomputed_layers(c));
  };
  const MemoryPlan all = planned(config), one = planned(recomputed(config));
  EXPECT_LT(one.activations * 3, all.activations);
  EXPECT_EQ(one.total() - one.activations, all.total() - all.activations);
  // Eight inputs of 32 values, and one layer.
  const Config shallow = [&] {
    Config c = config;
    c.model.num_layers = 1;
    return c;
  }();
  const std::int64_t head = 128 * config.model.vocab_size * 2 * 4;
  EXPECT_EQ(one.activations, 128 * 8 * 32 * 4 + std::max(head, planned(shallow).activations - head));
}

TEST(RecomputeConfiguration, TakesOneEntryOrOnePerLayer) {
  const TempFolder folder;
  Config config = recomputed(small_config(write_text(folder.path())), {"full", "none", "none"});
  EXPECT_THROW(validate(config), InvalidArgument);
  config.train.recompute = {"none", "full"};
  EXPECT_NO_THROW(validate(config));
  EXPECT_EQ(recomputed_layers(config), (std::vector<bool>{false, true}));
  config.train.recompute = {"full"};
  EXPECT_EQ(recomputed_layers(config), (std::vector<bool>{true, true}));
}

}  // namespace
}  // namespace moesaic::testing
