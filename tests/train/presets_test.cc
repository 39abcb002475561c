#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "moesaic/shard/memory_plan.h"
#include "moesaic/train/config.h"
#include "moesaic/train/trainer.h"

namespace moesaic {
namespace {

TEST(Presets, OlmoeHasSevenBillionParametersAndOneActive) {
  const Config config =
      load_config(MOESAIC_SOURCE_DIR "/configs/olmoe-1b-7b.toml",
                  std::vector<std::string>{"parallel.experts=exchange", "train.dtype=bf16"});
  const ParallelOptions options = parallel_options(config);
  const MemoryPlan plan = plan_memory(config.model, options, Topology::one_node(64), 2, 4096);
  // The published model: 6.92 billion, 1.28 billion active (transformers' OlmoeForCausalLM counts
  // 6,919,161,856).
  EXPECT_EQ(plan.parameters, 6919161856);
  EXPECT_NEAR(static_cast<double>(plan.active_parameters), 1.28e9, 0.01e9);
  // 64 ranks share masters, moments and images evenly: to a hundredth.
  EXPECT_NEAR(static_cast<double>(plan.masters), 6919161856.0 * 4 / 64, 0.01 * 6919161856.0 * 4 / 64);
  EXPECT_EQ(plan.moments, 2 * plan.masters);
  // Exchange gathers no experts; gather brings whole layers: 64 experts x 3 matrices of 2048 x 1024 in bf16.
  ParallelOptions gather = options;
  gather.experts.assign(16, ExpertsMode::kGather);
  EXPECT_GT(plan_memory(config.model, gather, Topology::one_node(64), 2, 4096).gathered,
            plan.gathered + 2 * 64 * 3 * 2048 * 1024 * 2);
}

// In billions, of the published models, as far as their parts exist here (see each file's head).
TEST(Presets, OthersHaveTheirPublishedSizes) {
  struct Published {
    const char* name;
    double parameters, active;
  };
  for (const Published& model :
       {Published{"mixtral-8x7b", 46.70 + 0.81, 12.88 + 0.81},  // keys, values of all heads
        Published{"qwen-moe-a2.7b", 14.3, 2.7}, Published{"deepseek-moe-16b", 16.4, 2.83}}) {
    const Config config = load_config(std::string(MOESAIC_SOURCE_DIR "/configs/") + model.name + ".toml");
    const MemoryPlan plan =
        plan_memory(config.model, parallel_options(config), Topology::one_node(4), 1, 4096);
    EXPECT_NEAR(static_cast<double>(plan.parameters) / 1e9, model.parameters, 0.05) << model.name;
    EXPECT_NEAR(static_cast<double>(plan.active_parameters) / 1e9, model.active, 0.05) << model.name;
  }
}

TEST(Presets, SwitchSendsATokenToOneOfManyReluExpertsWithCapacity) {
  const Config config = load_config(MOESAIC_SOURCE_DIR "/configs/switch-base-128.toml");
  EXPECT_EQ(config.model.moe.gate.name, "switch");
  EXPECT_EQ(config.model.moe.gate.num_experts, 128);
  EXPECT_EQ(config.model.moe.gate.capacity_factor, 1.25);
  EXPECT_EQ(config.model.activation, Activation::kRelu);
}

}  // namespace
}  // namespace moesaic
