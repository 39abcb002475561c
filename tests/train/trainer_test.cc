#include "moesaic/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moesaic/core/error.h"
#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

// The first value of the head's matrix on the rank that holds it; null on the others.
float* head_value(Trainer& trainer) {
  for (auto& unit : trainer.model().units()) {
    for (const Segment& segment : unit->layout().shard_segments(trainer.world().rank())) {
      if (segment.tensor->name == "lm_head.weight" && segment.tensor_begin == 0) {
        return unit->master().data() + segment.offset;
      }
    }
  }
  return nullptr;
}

class TrainerOnThreeRanks : public ::testing::Test {
 protected:
  TempFolder folder_;
  Config config_ = with_layout(small_config(write_text(folder_.path())), {"", 3, {"exchange"}});
};

TEST_F(TrainerOnThreeRanks, ANonFiniteStepIsSkippedByAllRanksAndTrainingGoesOn) {
  on_ranks(config_, [](Trainer& trainer) {
    trainer.model().initialise(1);
    trainer.step();
    float* value = head_value(trainer);
    const float before = value != nullptr ? *value : 0.0f;
    if (value != nullptr) *value = std::numeric_limits<float>::quiet_NaN();
    const StepReport skipped = trainer.step();
    EXPECT_TRUE(skipped.skipped);
    EXPECT_FALSE(std::isfinite(skipped.loss));
    if (value != nullptr) {
      EXPECT_TRUE(std::isnan(*value)) << "the skipped step must not have touched the parameters";
      *value = before;
    }
    EXPECT_EQ(trainer.optimizer().steps(), 1);
    EXPECT_EQ(trainer.position().steps_done, 2);
    EXPECT_EQ(trainer.position().skipped_in_a_row, 1);
    const StepReport next = trainer.step();
    EXPECT_FALSE(next.skipped);
    EXPECT_TRUE(std::isfinite(next.loss));
    EXPECT_EQ(trainer.position().skipped_in_a_row, 0);
  });
}

TEST_F(TrainerOnThreeRanks, StopsAfterTheConfiguredNumberOfSkippedStepsInARow) {
  config_.train.max_skipped_steps = 3;
  on_ranks(config_, [](Trainer& trainer) {
    trainer.model().initialise(1);
    if (float* value = head_value(trainer)) *value = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(trainer.step().skipped);
    EXPECT_TRUE(trainer.step().skipped);
    try {
      trainer.step();
      ADD_FAILURE() << "rank " << trainer.world().rank() << " went on";
    } catch (const NonFinite& error) {
      EXPECT_NE(std::string(error.what()).find("3 steps in a row"), std::string::npos) << error.what();
    }
  });
}

TEST(LearningRate, WarmsUpLinearlyThenFollowsTheSchedule) {
  OptimConfig config;
  config.lr = 1.0;
  config.warmup_steps = 4;
  config.final_lr_fraction = 0.1;
  config.schedule = LrSchedule::kCosine;
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 0, 104), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 3, 104), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 4, 104), 1.0);
  EXPECT_NEAR(learning_rate_at(config, 54, 104), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_at(config, 104, 104), 0.1, 1e-12);
  config.schedule = LrSchedule::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate_at(config, 90, 104), 1.0);
}

}  // namespace
}  // namespace moesaic::testing
