#include "moesaic/cost/gather_gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "tests/comm/thrown.h"
#include "tests/cost/calibrations.h"

namespace moesaic {
namespace {

using codec::Method;

const Topology kTopology = Topology::uniform(4, 2);

GatherShape shape_of(std::int64_t words_per_rank) {
  return {.topology = kTopology, .words_of_rank = std::vector<std::int64_t>(4, words_per_rank)};
}

constexpr std::int64_t kWords = 1'000'000;
constexpr std::int64_t kMessageBytes = 4 * kWords * 27 / 80;  // 2.7 bits a word

// A gate on a link of so many bytes a second.
GatherGate gate_on(double bytes_per_s, std::int64_t words = kWords, GatherGateOptions options = {}) {
  return {"layer 3", round_calibration(kTopology, bytes_per_s), shape_of(words), options};
}

double predicted(double bytes_per_s, Method method, double bits = 2.7) {
  return predict(round_calibration(kTopology, bytes_per_s), shape_of(kWords), method, bits).total;
}

// Runs steps whose gathers take raw_s or coded_s; the methods that were taken, from step `first` on.
std::vector<Method> run(GatherGate& gate, std::int64_t first, int steps, double raw_s, double coded_s) {
  std::vector<Method> taken;
  for (std::int64_t step = first; step < first + steps; ++step) {
    const Method method = gate.choose(step);
    gate.observe(step, method, method == Method::kRaw ? raw_s : coded_s,
                 method == Method::kRaw ? 0 : kMessageBytes);
    taken.push_back(method);
  }
  return taken;
}

std::vector<Method> repeated(int count, Method method) {
  return std::vector<Method>(static_cast<std::size_t>(count), method);
}

TEST(GatherGate, TakesMomentumOnASlowLinkAndRawOnAFastOneFromTheStart) {
  EXPECT_EQ(gate_on(12.5e6).choose(0), Method::kMomentum);
  EXPECT_EQ(gate_on(12.5e9).choose(0), Method::kRaw);
}

TEST(GatherGate, TakesRawForATinyUnitOnAnyLink) {
  for (const double bytes_per_s : {1e6, 12.5e6, 12.5e9})
    EXPECT_EQ(gate_on(bytes_per_s, 4).choose(0), Method::kRaw);
  EXPECT_EQ(gate_on(12.5e6, 0).choose(0), Method::kRaw);
}

TEST(GatherGate, AFasterLinkNeverTurnsRawIntoCoded) {
  bool raw = false;
  for (double bytes_per_s = 1e6; bytes_per_s < 1e11; bytes_per_s *= 1.1) {
    const bool now = gate_on(bytes_per_s).choose(0) == Method::kRaw;
    EXPECT_TRUE(now || !raw) << bytes_per_s;
    raw = now;
  }
  EXPECT_TRUE(raw);
}

TEST(GatherGate, NotesTheFactsOfADecision) {
  GatherGate gate = gate_on(12.5e6);
  gate.choose(7);
  const GatherDecision& decision = gate.decision();
  EXPECT_EQ(decision.unit, "layer 3");
  EXPECT_EQ(decision.step, 7);
  EXPECT_EQ(decision.chosen, Method::kMomentum);
  EXPECT_EQ(decision.coded, Method::kMomentum);
  EXPECT_FALSE(decision.probe);
  EXPECT_DOUBLE_EQ(decision.predicted_raw_s, predicted(12.5e6, Method::kRaw));
  EXPECT_DOUBLE_EQ(decision.predicted_coded_s, predicted(12.5e6, Method::kMomentum));
  EXPECT_FALSE(decision.measured_s.has_value());
  gate.observe(7, Method::kMomentum, 0.25, kMessageBytes);
  EXPECT_EQ(gate.decision().measured_s, 0.25);
  gate.choose(8);
  EXPECT_FALSE(gate.decision().measured_s.has_value());
}

TEST(GatherGate, LearnsTheBitsAndTheTimesItMeasures) {
  GatherGate gate = gate_on(12.5e6);
  const std::int64_t half = 4 * kWords / 16;  // 0.5 bits a word
  const double expected = predicted(12.5e6, Method::kMomentum, 0.5);
  for (std::int64_t step = 0; step < 10; ++step) {
    gate.observe(step, gate.choose(step), 1.5 * expected, half);
    const bool still_young = step < 2;  // a key, and a difference without one before it
    gate.choose(++step);
    EXPECT_DOUBLE_EQ(gate.decision().bits_per_word, still_young ? 2.7 : 0.5) << step;
    EXPECT_NEAR(gate.decision().predicted_coded_s,
                still_young ? predicted(12.5e6, Method::kMomentum) : 1.5 * expected, 1e-12);
    gate.observe(step, Method::kMomentum, 1.5 * expected, half);
  }
}

// What it expects of momentum after steps whose gathers took so many times the prediction.
double factor_after(const std::vector<double>& measured_over_predicted) {
  GatherGateOptions options;
  options.gate.gain = 1e12;  // it stays with momentum
  GatherGate gate = gate_on(12.5e6, kWords, options);
  const double unit = predicted(12.5e6, Method::kMomentum);
  std::int64_t step = 0;
  for (; step < 2; ++step) gate.choose(step);  // not believed yet
  for (const double factor : measured_over_predicted) {
    gate.choose(step);
    gate.observe(step++, Method::kMomentum, factor * unit, kMessageBytes);
  }
  gate.choose(step);
  return gate.decision().predicted_coded_s / unit;
}

TEST(GatherGate, AveragesAreMeansAtFirstAndThenMoveAFifthOfTheWay) {
  EXPECT_NEAR(factor_after({1.5}), 1.5, 1e-9);
  EXPECT_NEAR(factor_after({1.5, 2.5}), 2, 1e-9);
  EXPECT_NEAR(factor_after({1.5, 2.5, 0.8}), 1.6, 1e-9);
  EXPECT_NEAR(factor_after({1, 1, 1, 1, 2}), 1.2, 1e-9);
  EXPECT_NEAR(factor_after({1, 1, 1, 1, 1, 1, 1, 1, 2}), 1.2, 1e-9);
}

TEST(GatherGate, OneMeasurementIsBelievedThreefoldAtMost) {
  EXPECT_NEAR(factor_after({1, 1, 1, 1, 1, 1e9}), 1 + 0.2 * 2, 1e-9);
  EXPECT_NEAR(factor_after({1, 1, 1, 1, 1, 0}), 1 - 0.2 * 2 / 3, 1e-9);
  EXPECT_NEAR(factor_after({1e9}), 3, 1e-9);
}

TEST(GatherGate, TheFirstStepsAreNotBelieved) {
  GatherGate gate = gate_on(12.5e9);
  const double raw_s = predicted(12.5e9, Method::kRaw);
  run(gate, 0, 2, 100 * raw_s, raw_s);
  EXPECT_EQ(gate.choose(2), Method::kRaw);
  EXPECT_DOUBLE_EQ(gate.decision().predicted_raw_s, raw_s);
  gate.observe(2, Method::kRaw, 2 * raw_s, 0);
  gate.choose(3);
  EXPECT_DOUBLE_EQ(gate.decision().predicted_raw_s, 2 * raw_s);
}

GatherGateOptions probing_at_any_cost() {
  GatherGateOptions options;
  options.gate.probe_cost = 1;
  return options;
}

TEST(GatherGate, AWayThatMeasuresSlowIsLeftOnceTheOtherWasSeenToBeFaster) {
  GatherGate gate = gate_on(12.5e6, kWords, probing_at_any_cost());
  const double raw_s = predicted(12.5e6, Method::kRaw);
  const auto taken = run(gate, 0, 60, raw_s, 2 * raw_s);
  auto expected = repeated(50, Method::kMomentum);
  // The look; a decision that is the first to see what it showed; the second.
  expected.insert(expected.end(), {Method::kRaw, Method::kMomentum});
  expected.resize(60, Method::kRaw);
  EXPECT_EQ(taken, expected);
}

TEST(GatherGate, SmallGainsDoNotChangeItsMind) {
  const double raw_s = predicted(12.5e6, Method::kRaw);
  GatherGate gate = gate_on(12.5e6, kWords, probing_at_any_cost()),
             other = gate_on(12.5e6, kWords, probing_at_any_cost());
  auto expected = repeated(90, Method::kMomentum);
  expected[50] = Method::kRaw;  // it looked
  EXPECT_EQ(run(gate, 0, 90, raw_s, 1.04 * raw_s), expected);
  expected.resize(52);
  expected.resize(90, Method::kRaw);
  EXPECT_EQ(run(other, 0, 90, raw_s, 1.06 * raw_s), expected);
}

// Ranks that come late cost either way the same, now more, now less.
TEST(GatherGate, WaitingForOthersDoesNotSendItBackAndForth) {
  for (const double bytes_per_s : {12.5e6, 12.5e9}) {
    constexpr std::int64_t kSmall = 20'000;
    GatherGate gate = gate_on(bytes_per_s, kSmall);
    const auto price = [&](Method method) {
      return predict(round_calibration(kTopology, bytes_per_s), shape_of(kSmall), method, 2.7).total;
    };
    const Method better = price(Method::kMomentum) < price(Method::kRaw) ? Method::kMomentum : Method::kRaw;
    std::mt19937_64 random(5);
    std::lognormal_distribution<> noise(0, 0.5);
    int changes = 0;
    double spent = 0, least = 0;
    Method before = better;
    for (std::int64_t step = 0; step < 500; ++step) {
      const Method method = gate.choose(step);
      const double late = (step < 250 ? 5 : 20) * price(Method::kRaw) * noise(random);
      gate.observe(step, method, price(method) + late, method == Method::kRaw ? 0 : 4 * kSmall * 27 / 80);
      spent += price(method) + late;
      least += price(better) + late;
      if (gate.decision().probe) continue;
      changes += method != before;
      before = method;
    }
    EXPECT_LE(changes, 10) << bytes_per_s;
    EXPECT_LE(spent, 1.05 * least) << bytes_per_s;
  }
}

TEST(GatherGate, OneOutlierDoesNotChangeItsMind) {
  GatherGate gate = gate_on(12.5e6);
  const double raw_s = predicted(12.5e6, Method::kRaw), coded_s = predicted(12.5e6, Method::kMomentum);
  run(gate, 0, 10, raw_s, coded_s);
  run(gate, 10, 1, raw_s, 1000 * coded_s);
  EXPECT_EQ(run(gate, 11, 20, raw_s, coded_s), repeated(20, Method::kMomentum));
}

TEST(GatherGate, LooksAtRawEveryFiftyStepsAndReturns) {
  GatherGateOptions options;
  options.gate.probe_cost = 1;  // whatever it costs
  GatherGate gate = gate_on(12.5e6, kWords, options);
  const auto taken = run(gate, 0, 120, predicted(12.5e6, Method::kRaw), predicted(12.5e6, Method::kMomentum));
  auto expected = repeated(120, Method::kMomentum);
  expected[50] = expected[100] = Method::kRaw;
  EXPECT_EQ(taken, expected);
}

TEST(GatherGate, LooksAtCodedLongEnoughToSeeItAtItsBest) {
  GatherGateOptions options;
  options.gate.probe_cost = 1;
  GatherGate gate = gate_on(12.5e9, kWords, options);
  const double raw_s = predicted(12.5e9, Method::kRaw), coded_s = predicted(12.5e9, Method::kMomentum);
  const auto taken = run(gate, 0, 110, raw_s, coded_s);
  auto expected = repeated(110, Method::kRaw);
  for (const std::size_t first : {50, 100})
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(first), 3, Method::kMomentum);
  EXPECT_EQ(taken, expected);
}

TEST(GatherGate, AProbeThatFindsABetterWayStaysThere) {
  GatherGateOptions options;
  options.gate.probe_cost = 1;
  GatherGate gate = gate_on(12.5e9, kWords, options);
  const double raw_s = predicted(12.5e9, Method::kRaw);
  const auto taken = run(gate, 0, 80, raw_s, raw_s / 3);  // the coder is faster than it was thought
  EXPECT_EQ(std::vector<Method>(taken.begin(), taken.begin() + 50), repeated(50, Method::kRaw));
  EXPECT_EQ(std::vector<Method>(taken.begin() + 50, taken.begin() + 53), repeated(3, Method::kMomentum));
  EXPECT_EQ(taken[53], Method::kRaw);  // the first check of two
  EXPECT_EQ(std::vector<Method>(taken.begin() + 54, taken.end()), repeated(26, Method::kMomentum));
}

TEST(GatherGate, ProbesCostAHundredthOfTheTimeAtMost) {
  for (const double bytes_per_s : {12.5e6, 125e6, 1.25e9, 12.5e9}) {
    GatherGate gate = gate_on(bytes_per_s);
    const double raw_s = predicted(bytes_per_s, Method::kRaw),
                 coded_s = predicted(bytes_per_s, Method::kMomentum);
    constexpr int kSteps = 3000;
    double spent = 0;
    int probes = 0;
    for (const Method method : run(gate, 0, kSteps, raw_s, coded_s)) {
      spent += method == Method::kRaw ? raw_s : coded_s;
      probes += (method == Method::kRaw) != (raw_s <= coded_s);
    }
    EXPECT_LE(spent, 1.01 * kSteps * std::min(raw_s, coded_s)) << bytes_per_s;
    EXPECT_GE(probes, 1) << bytes_per_s;
  }
}

// Steps in which computing leaves the gathers `window` seconds before somebody stands still for them.
std::vector<Method> run_beside(GatherGate& gate, std::int64_t first, int steps, double raw_s, double coded_s,
                               double window) {
  std::vector<Method> taken;
  for (std::int64_t step = first; step < first + steps; ++step) {
    taken.push_back(gate.choose(step));
    const bool raw = taken.back() == Method::kRaw;
    gate.observe(step, taken.back(), raw ? raw_s : coded_s, raw ? 0 : kMessageBytes, window);
  }
  return taken;
}

TEST(GatherGate, DoesNotCodeWhatNobodyWaitsFor) {
  const double raw_s = predicted(12.5e6, Method::kRaw), coded_s = predicted(12.5e6, Method::kMomentum);
  GatherGate gate = gate_on(12.5e6);
  const auto taken = run_beside(gate, 0, 30, raw_s, coded_s, 1.1 * raw_s);
  EXPECT_EQ(taken.front(), Method::kMomentum);  // no window is known yet
  EXPECT_EQ(std::vector<Method>(taken.begin() + 6, taken.end()), repeated(24, Method::kRaw));
  EXPECT_NEAR(gate.decision().window_s, 1.1 * raw_s, 1e-9);
  // Computing became faster, or less: raw is waited for.
  const auto later = run_beside(gate, 30, 30, raw_s, coded_s, 0.3 * raw_s);
  EXPECT_EQ(later.back(), Method::kMomentum);
}

TEST(GatherGate, CodesWhereOnlyRawIsWaitedForLongerThanCodingKeepsAProcessorBusy) {
  const double raw_s = predicted(12.5e6, Method::kRaw), coded_s = predicted(12.5e6, Method::kMomentum);
  const Prediction coded =
      predict(round_calibration(kTopology, 12.5e6), shape_of(kWords), Method::kMomentum, 2.7);
  const double coder_s = coded.encode + coded.decode;
  ASSERT_LT(2 * coder_s, raw_s);
  GatherGate more = gate_on(12.5e6), less = gate_on(12.5e6);
  EXPECT_EQ(run_beside(more, 0, 30, raw_s, coded_s, raw_s - 1.2 * coder_s).back(), Method::kMomentum);
  EXPECT_EQ(run_beside(less, 0, 30, raw_s, coded_s, raw_s - 0.8 * coder_s).back(), Method::kRaw);
}

TEST(GatherGate, EqualObservationsGiveEqualDecisions) {
  std::mt19937_64 random(3);
  std::lognormal_distribution<> noise(0, 1);
  GatherGate one = gate_on(300e6), two = gate_on(300e6);
  const double raw_s = predicted(300e6, Method::kRaw);
  int changes = 0;
  Method before = Method::kRaw;
  for (std::int64_t step = 0; step < 2000; ++step) {
    const Method method = one.choose(step);
    ASSERT_EQ(two.choose(step), method);
    ASSERT_EQ(one.decision().predicted_coded_s, two.decision().predicted_coded_s);
    const double seconds = raw_s * noise(random);
    const auto bytes = static_cast<std::int64_t>(static_cast<double>(kMessageBytes) * noise(random));
    for (GatherGate* gate : {&one, &two}) gate->observe(step, method, seconds, bytes);
    changes += method != before;
    before = method;
  }
  EXPECT_GT(changes, 4);  // or nothing was decided
}

TEST(GatherGate, RejectsMeasurementsThatCannotBe) {
  GatherGate gate = gate_on(12.5e6);
  EXPECT_SAYS(thrown_by([&] { gate.observe(0, Method::kMomentum, 1, 1); }),
              "gate of layer 3: observed step 0");
  gate.choose(4);
  for (const double seconds : {-1.0, std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    EXPECT_SAYS(thrown_by([&] { gate.observe(4, Method::kMomentum, seconds, 1); }),
                "InvalidArgument: gate of layer 3: step 4 took");
  }
  EXPECT_SAYS(thrown_by([&] { gate.observe(4, Method::kMomentum, 1, -1); }), "step 4 sent -1 bytes");
  EXPECT_SAYS(thrown_by([&] { gate.observe(4, Method::kMomentum, 1, 1, -1); }),
              "gate of layer 3: step 4 had a window of -1 s");
  EXPECT_SAYS(thrown_by([&] { gate.observe(4, Method::kRaw, 1, 1); }),
              "observed step 4 by raw, expected step 4 by momentum");
  EXPECT_SAYS(thrown_by([&] { gate.observe(3, Method::kMomentum, 1, 1); }), "observed step 3");
  EXPECT_SAYS(thrown_by([&] { gate.choose(4); }), "choose for step 4 after step 4");
  EXPECT_EQ(gate.decision().predicted_coded_s, predicted(12.5e6, Method::kMomentum));  // nothing was learned
}

TEST(GatherGate, RejectsOptionsThatCannotBe) {
  const auto made = [](auto change) {
    GatherGateOptions options;
    change(options);
    return thrown_by([&] { gate_on(12.5e6, kWords, options); });
  };
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.coded = Method::kInt8; }), "int8 is no choice");
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.coded = Method::kRaw; }), "raw is no choice");
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.gate.gain = -0.1; }), "gain is -0.1");
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.gate.confirmations = 0; }), "confirmations is 0");
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.gate.probe_every = 0; }), "probe_every is 0");
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.gate.probe_cost = 0; }), "probe_cost is 0");
  EXPECT_SAYS(made([](GatherGateOptions& o) { o.gate.smoothing = 2; }), "smoothing is 2");
  Calibration broken = round_calibration(kTopology);
  broken.copy.alone_bytes_per_s = -1;
  EXPECT_SAYS(thrown_by([&] { GatherGate("u", broken, shape_of(1)); }), "copy.alone_bytes_per_s is -1");
}

}  // namespace
}  // namespace moesaic
