// step_trial.h: whether whole steps are faster coded, as gates say, or plain.
//
// Gates (two_way_gate.h) see what their own unit's messages take. They do not see what coding takes from the
// computation of others where ranks share cores and memory, nor how late units make each other. So now and
// then some steps go the other way as a whole, and the times of steps decide.
//
// Local, sends nothing; decisions are equal on all ranks if `seconds` and `coded` are (summed over ranks).
//
// A trial: the last kMeasured steps of the way that is taken, then steps of the other one, of which the first
// are not measured (connections rest; references are renewed), then kMeasured more. What counts is the mean
// of the logarithms of (median plain / median coded), the newest weighing half. The other way is taken when
// it was kGain less. A trial is ended after its first measured step where that takes more than half as much
// again. After each trial the next one is twice as far, at most kMostBetween steps; where the times differed
// by more than kClearly, that far at once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace moesaic {

struct StepTrialResult {
  double coded_s = 0, plain_s = 0;  // medians of steps
  bool plain = false;               // taken from now on
};

class StepTrial {
 public:
  static constexpr int kFirst = 8;  // the first steps: gates settle
  static constexpr int kMeasured = 4;
  static constexpr int kPlainWarmUp = 1, kCodedWarmUp = 3;
  static constexpr double kGain = 0.02, kClearly = 0.25;
  static constexpr int kLeastBetween = 32, kMostBetween = 1024;

  // Whether the next step is to be all plain.
  bool plain() const { return trying_ ? !plain_ : plain_; }
  // Whether its seconds are needed; then stepped() with them, else without.
  bool measures() const { return trying_ ? tried_ >= warm_up() : until_trial_ <= kMeasured; }

  void stepped();
  // `coded`: whether anything was. The result, where this step ends a trial. InvalidArgument: seconds that
  // are not above zero.
  std::optional<StepTrialResult> stepped(double seconds, bool coded);

 private:
  int warm_up() const { return plain_ ? kCodedWarmUp : kPlainWarmUp; }
  void begin_or_wait();
  StepTrialResult end();

  bool plain_ = false;  // taken outside of trials
  bool trying_ = false;
  int tried_ = 0;             // steps of the trial
  int until_trial_ = kFirst;  // steps before it
  int between_ = kLeastBetween;
  bool coded_ = false;  // something was, in the measured steps before a trial
  std::vector<double> mine_, others_;
  std::optional<double> log_ratio_;  // plain / coded
};

}  // namespace moesaic
