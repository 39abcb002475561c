#include "moesaic/cost/measure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "moesaic/codec/gradient.h"
#include "moesaic/codec/message.h"
#include "moesaic/cost/training_weights.h"
#include "tests/codec/steps.h"
#include "tests/comm/thrown.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

constexpr double kBudget = 0.02;

TEST(Calibrate, AllRanksOfAnyWorldGetTheSameValidResult) {
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{0}, {0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 0, 1}}) {
    const Topology topology = Topology::from_nodes(nodes);
    SCOPED_TRACE(describe(topology));
    std::mutex mutex;
    std::vector<std::string> results;
    run_world(topology, [&](Communicator& world) {
      const Calibration mine = calibrate(world, {.budget_s = kBudget, .machine = "a test"});
      require_valid(mine);
      const std::scoped_lock lock(mutex);
      results.push_back(to_json(mine));
    });
    ASSERT_EQ(results.size(), nodes.size());
    for (const std::string& result : results) EXPECT_EQ(result, results[0]);
    const Calibration result = calibration_from_json(results[0], "");
    EXPECT_EQ(result.node_of_rank, nodes);
    EXPECT_EQ(result.machine, "a test");
    EXPECT_EQ(result.between_measured, topology.num_nodes() > 1);
    const bool messages = nodes.size() > 1;
    EXPECT_EQ(result.between.seconds_per_message > 0, messages);
    EXPECT_EQ(result.inside.seconds_per_message > 0, messages);
    if (topology.num_nodes() == 1) {
      EXPECT_EQ(result.between.seconds_per_byte, result.inside.seconds_per_byte);
    }
  }
}

TEST(Calibrate, BudgetsThatAreNoTimeAreNamed) {
  run_world(Topology::one_node(1), [](Communicator& world) {
    EXPECT_SAYS(thrown_by([&] { calibrate(world, {.budget_s = 0}); }), "the budget is 0 s");
    EXPECT_SAYS(thrown_by([&] { calibrate(world, {.budget_s = -HUGE_VAL}); }), "the budget is -inf s");
  });
}

TEST(FromRank0, ItsCalibrationIsTakenByAll) {
  run_world(Topology::one_node(3), [](Communicator& world) {
    const Calibration measured = calibrate(world, {.budget_s = kBudget});
    Calibration mine = measured;
    mine.between.seconds_per_byte = 1 + world.rank();
    EXPECT_EQ(from_rank_0(world, mine).between.seconds_per_byte, 1);
  });
}

// What they are made for: bits as on a recorded trace at the peak of the learning rate.
TEST(TrainingWeights, TakeTheBitsOfARecordedTrace) {
  const TrainingWeights weights(1 << 17, 5);
  const struct {
    codec::Method method;
    double bits;
  } cases[] = {{codec::Method::kEntropy, 10.6},
               {codec::Method::kExponentReuse, 9.0},
               {codec::Method::kResidual, 3.6},
               {codec::Method::kMomentum, 2.7}};
  for (const auto& [method, bits] : cases) {
    codec::Reference reference(codec::needs(method), weights.size());
    std::vector<std::uint16_t> words;
    double sent = 0;
    for (int step = 0; step < 6; ++step) {
      weights.after(step, words);
      const codec::Sent message = codec::encode(method, reference, words);
      sent = 8.0 * static_cast<double>(message.bytes.size()) / static_cast<double>(weights.size());
      reference.commit(message.update, words);
    }
    EXPECT_NEAR(sent, bits, 0.06 * bits) << codec::name_of(method);
  }
}

TEST(TrainingGradient, TakesTheBitsOfARecordedOne) {
  const std::vector<std::uint16_t> words = training_gradient(256, 512, 3);
  const codec::GradientPiece piece{.words = words.size(), .rows = 256, .cols = 512, .offset = 0};
  std::vector<std::byte> out(codec::gradient_bound(std::span(&piece, 1), {}));
  const std::size_t bytes =
      codec::encode_gradient(codec::GradientWire::kEntropy, words, std::span(&piece, 1), {}, out).bytes;
  EXPECT_NEAR(8.0 * static_cast<double>(bytes) / static_cast<double>(words.size()), 10.4, 0.3);
}

}  // namespace
}  // namespace moesaic
