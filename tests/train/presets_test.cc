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

}  // namespace
}  // namespace moesaic
