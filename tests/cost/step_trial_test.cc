#include "moesaic/cost/step_trial.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {
namespace {

struct Steps {
  int plain = 0, trials = 0, measured = 0;
  double seconds = 0;
  StepTrialResult last;
};

// seconds_of(step, plain): what a step takes.
Steps steps(int n, const std::function<double(int, bool)>& seconds_of, bool gates_code = true) {
  StepTrial trial;
  Steps run;
  for (int step = 0; step < n; ++step) {
    const bool plain = trial.plain();
    const double seconds = seconds_of(step, plain);
    run.plain += plain;
    run.seconds += seconds;
    if (!trial.measures()) {
      trial.stepped();
      continue;
    }
    ++run.measured;
    if (const auto result = trial.stepped(seconds, gates_code && !plain)) {
      run.last = *result;
      ++run.trials;
    }
  }
  return run;
}

std::function<double(int, bool)> constant(double coded, double plain) {
  return [=](int, bool is_plain) { return is_plain ? plain : coded; };
}

TEST(StepTrial, KeepsCodingWhereItPaysAtTheCostOfAFewSteps) {
  const Steps run = steps(2000, constant(1.0, 1.1));
  EXPECT_GE(run.trials, 5);
  EXPECT_FALSE(run.last.plain);
  EXPECT_DOUBLE_EQ(run.last.coded_s, 1.0);
  EXPECT_DOUBLE_EQ(run.last.plain_s, 1.1);
  EXPECT_LE(run.plain, 50);
  EXPECT_LE(run.measured, 100);
}

TEST(StepTrial, GoesPlainWhereCodingCosts) {
  const Steps run = steps(2000, constant(1.0, 0.95));
  EXPECT_TRUE(run.last.plain);
  EXPECT_GE(run.plain, 1900);
  // 2% slower than the better way is too slow.
  EXPECT_LT(run.seconds, 1.01 * 0.95 * 2000);
}

TEST(StepTrial, ASlowLinkIsNotTriedForLong) {
  const Steps run = steps(1000, constant(1.0, 5.0));
  EXPECT_EQ(run.trials, 1);
  EXPECT_EQ(run.plain, StepTrial::kPlainWarmUp + 1);
}

TEST(StepTrial, TriesNothingWhereGatesCodeNothing) {
  const Steps run = steps(1000, constant(1.0, 0.5), /*gates_code=*/false);
  EXPECT_EQ(run.trials, 0);
  EXPECT_EQ(run.plain, 0);
}

TEST(StepTrial, LeavesALeadThatIsNotWorthItsDoubt) {
  EXPECT_FALSE(steps(300, constant(1.0, 0.99)).last.plain);
}

TEST(StepTrial, FindsTheBetterWayInNoise) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::uint64_t key = random_key(seed, "noise");
    const auto noisy = [&](double coded, double plain) {
      return [=](int step, bool is_plain) {
        return (is_plain ? plain : coded) *
               (0.9 + 0.2 * random_uniform(key, static_cast<std::uint64_t>(step)));
      };
    };
    EXPECT_GE(steps(2000, noisy(1.0, 0.9)).plain, 1600) << seed;
    EXPECT_LE(steps(2000, noisy(1.0, 1.1)).plain, 400) << seed;
  }
}

TEST(StepTrial, ReturnsWhenTheLinkHasChanged) {
  const auto link = [](int step, bool is_plain) { return is_plain ? (step < 500 ? 0.9 : 3.0) : 1.0; };
  const Steps run = steps(3000, link);
  EXPECT_FALSE(run.last.plain);
  EXPECT_LE(run.plain, 1100);
}

TEST(StepTrial, RefusesSecondsThatAreNone) {
  StepTrial trial;
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(trial.stepped(seconds, true), InvalidArgument);
  }
}

}  // namespace
}  // namespace moesaic
