#include "moesaic/cost/reduce_gate.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/comm/thrown.h"
#include "tests/cost/calibrations.h"

namespace moesaic {
namespace {

using codec::GradientWire;

const Topology kTopology = Topology::uniform(4, 2);
constexpr std::int64_t kWords = 1'000'000;
const ReduceShape kShape{kTopology, std::vector<std::int64_t>(4, kWords)};

ReduceGate gate_on(double bytes_per_s, TwoWayOptions options = {}) {
  return {"layer 3", round_calibration(kTopology, bytes_per_s), kShape, 1, options};
}

double predicted(double bytes_per_s, bool coded, double bits) {
  return predict_reduce(round_calibration(kTopology, bytes_per_s), kShape, coded, bits).total();
}

TEST(ReduceGate, CodesOnASlowLinkAndNotOnAFastOneFromTheStart) {
  EXPECT_EQ(gate_on(12.5e6).choose(0), GradientWire::kEntropy);
  EXPECT_EQ(gate_on(12.5e9).choose(0), GradientWire::kBf16);
}

TEST(ReduceGate, CountsEveryReduceOfAStep) {
  const Calibration calibration = round_calibration(kTopology);
  ReduceGate once("u", calibration, kShape, 1), thrice("u", calibration, kShape, 3);
  once.choose(0);
  thrice.choose(0);
  EXPECT_DOUBLE_EQ(thrice.decision().predicted_bf16_s, 3 * once.decision().predicted_bf16_s);
}

// Half of the words are blocks of zeros: entropy takes 5 bits a word instead of 10, bf16 8 instead of 16.
TEST(ReduceGate, BothPricesFallWhereBlocksAreLeftOut) {
  ReduceGate gate = gate_on(12.5e6);
  for (std::int64_t step = 0; step < 8; ++step) {
    ASSERT_EQ(gate.choose(step), GradientWire::kEntropy);
    gate.observe(predicted(12.5e6, true, 5), 2 * kWords, 2 * kWords * 5 / 8);
  }
  gate.choose(8);
  EXPECT_NEAR(gate.decision().predicted_entropy_s, predicted(12.5e6, true, 5), 1e-9);
  EXPECT_NEAR(gate.decision().predicted_bf16_s, predicted(12.5e6, false, 8), 1e-9);
}

TEST(ReduceGate, LeavesAWayThatMeasuresSlow) {
  ReduceGate gate = gate_on(12.5e6, {.probe_cost = 1});
  std::vector<GradientWire> taken;
  const double plain_s = predicted(12.5e6, false, 16);
  for (std::int64_t step = 0; step < 60; ++step) {
    taken.push_back(gate.choose(step));
    const bool coded = taken.back() == GradientWire::kEntropy;
    gate.observe(coded ? 2 * plain_s : plain_s, 2 * kWords, 2 * kWords * (coded ? 10 : 16) / 8);
  }
  EXPECT_EQ(taken.front(), GradientWire::kEntropy);
  EXPECT_EQ(taken[50], GradientWire::kBf16);  // a look
  EXPECT_EQ(taken.back(), GradientWire::kBf16);
}

TEST(ReduceGate, DoesNotCodeWhatNobodyWaitsFor) {
  ReduceGate gate = gate_on(12.5e6);
  const double plain_s = predicted(12.5e6, false, 16), coded_s = predicted(12.5e6, true, 10);
  std::vector<GradientWire> taken;
  for (std::int64_t step = 0; step < 20; ++step) {
    taken.push_back(gate.choose(step));
    const bool coded = taken.back() == GradientWire::kEntropy;
    gate.observe(coded ? coded_s : plain_s, 2 * kWords, 2 * kWords * (coded ? 10 : 16) / 8, 2 * plain_s);
  }
  EXPECT_EQ(taken.front(), GradientWire::kEntropy);
  EXPECT_EQ(taken.back(), GradientWire::kBf16);
  EXPECT_NEAR(gate.decision().window_s, 2 * plain_s, 1e-9);
}

TEST(ReduceGate, RejectsMeasurementsThatCannotBe) {
  ReduceGate gate = gate_on(12.5e6);
  gate.choose(4);
  EXPECT_SAYS(thrown_by([&] { gate.observe(-1, 1, 1); }), "gate of layer 3: step 4 took -1 s");
  EXPECT_SAYS(thrown_by([&] { gate.observe(std::numeric_limits<double>::infinity(), 1, 1); }), "took inf s");
  EXPECT_SAYS(thrown_by([&] { gate.observe(1, -1, 1); }), "step 4 sent -1 words");
  EXPECT_SAYS(thrown_by([&] { gate.choose(4); }), "choose for step 4 after step 4");
  EXPECT_SAYS(thrown_by([&] { ReduceGate("u", round_calibration(kTopology), kShape, 0); }), "got 0 reduces");
}

}  // namespace
}  // namespace moesaic
