#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate.h"

namespace moesaic {
namespace {

GateOptions switch_gate(std::int64_t num_experts) {
  GateOptions options;
  options.name = "switch";
  options.num_experts = num_experts;
  options.top_k = 1;
  return options;
}

template <typename Change>
void expect_refused(Change change, GateOptions options = {}) {
  change(options);
  EXPECT_THROW(validate(options), InvalidArgument);
}

TEST(GateOptions, DefaultsAreValidAndImpossibleValuesAreRefused) {
  EXPECT_NO_THROW(validate(GateOptions{}));
  EXPECT_NO_THROW(validate(switch_gate(4)));
  expect_refused([](auto& o) { o.num_experts = 0; });
  expect_refused([](auto& o) { o.top_k = 0; });
  expect_refused([](auto& o) { o.top_k = o.num_experts + 1; });
  expect_refused([](auto& o) { o.capacity_factor = -0.5; });
  expect_refused([](auto& o) { o.capacity_factor = std::numeric_limits<double>::infinity(); });
  expect_refused([](auto& o) { o.min_capacity = -1; });
  expect_refused([](auto& o) { o.route_scale = 0.0; });
  expect_refused([](auto& o) { o.route_scale = std::nan(""); });
}

TEST(GateOptions, CombinationsThatWouldBeIgnoredOrKillTheGradientAreRefused) {
  expect_refused([](auto& o) { o.top_k = 2; }, switch_gate(4));
  expect_refused([](auto& o) { o.normalise = Normalise::kBeforeDrop; }, switch_gate(4));
  expect_refused([](auto& o) { o.score = ScoreKind::kSigmoid; }, switch_gate(4));
  expect_refused([](auto& o) { o.bias_balance = true; });
  expect_refused([](auto& o) { o.route_scale = 2.5; });
  GateOptions sigmoid;
  sigmoid.score = ScoreKind::kSigmoid;
  expect_refused([](auto& o) { o.route_scale = 2.5; }, sigmoid);
  sigmoid.normalise = Normalise::kAfterDrop;
  sigmoid.route_scale = 2.5;
  EXPECT_NO_THROW(validate(sigmoid));
}

TEST(GateOptions, ErrorsNameWhatWasGotAndWhatIsAllowed) {
  GateOptions options;
  options.num_experts = 4;
  options.top_k = 9;
  try {
    validate(options);
    FAIL() << "top_k 9 of 4 experts was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("top_k is 9"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("1 to num_experts (4)"), std::string::npos) << error.what();
  }
}

TEST(ExpertCapacity, IsTheCeilingOfTheEvenShareTimesTheFactor) {
  GateOptions options;
  options.num_experts = 4;
  options.top_k = 2;
  options.capacity_factor = 1.0;
  EXPECT_EQ(expert_capacity(options, 10), 5);
  EXPECT_EQ(expert_capacity(options, 11), 6);  // 5.5
  options.capacity_factor = 1.25;
  EXPECT_EQ(expert_capacity(options, 16), 10);
}

TEST(ExpertCapacity, StaysBetweenMinCapacityAndTheNumberOfTokens) {
  auto options = switch_gate(4);
  options.capacity_factor = 1.0;
  options.min_capacity = 4;
  EXPECT_EQ(expert_capacity(options, 5), 4);
  EXPECT_EQ(expert_capacity(options, 3), 3);  // no more rows than tokens
  EXPECT_EQ(expert_capacity(options, 0), 0);
  options.capacity_factor = 1e300;  // past int64
  EXPECT_EQ(expert_capacity(options, 7), 7);
}

TEST(ExpertCapacity, FactorZeroMeansDropless) { EXPECT_EQ(expert_capacity(switch_gate(4), 100), -1); }

}  // namespace
}  // namespace moesaic
