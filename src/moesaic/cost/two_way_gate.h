// two_way_gate.h: whether a thing is done plainly or coded, step by step.
//
// Local, sends nothing. All ranks make the same decisions as long as they observe the same: options and the
// arguments of every call must be equal on all ranks (gathered facts). choose() before a step, observe()
// after it; a step may be left unobserved.
//
// The caller predicts what each way takes; added to that is what the way was measured to take beyond: a
// moving average (the plain mean of the first few). Most of that is waiting for ranks that come late, which
// either way would have to do: what the way that is taken takes more or less than before is taken to be so
// for the other one, too, until that is measured. The first steps, which set up connections and memory, are
// not believed, and no single step is believed to be more than three times as slow or as fast as expected.
//
// What counts of a way is how long it is waited for: the part of its seconds that goes beyond the window, the
// time others compute before they need it (a moving average, too; none at first). Coding keeps a processor
// busy even where nobody waits, so the coded way never counts for less than its coder's seconds.
//
// A way is left for the other when it promises to count more than `gain` less in `confirmations` decisions
// one after another. What nobody takes, nobody measures: so every `probe_every` steps the other way is taken
// for a moment; later than that where such a look would cost more than `probe_cost` of the time between two
// of them (2% slower than the better way is too slow, and the worse way may be five times as slow).
#pragma once

#include <algorithm>
#include <cstdint>

namespace moesaic {

// A mean of the first few values, then one in which the newest weighs `smoothing`.
struct MovingAverage {
  double value = 0;
  int count = 0;

  void add(double newest, double smoothing) {
    ++count;
    value += std::max(smoothing, 1.0 / count) * (newest - value);
  }
};

struct TwoWayOptions {
  double gain = 0.05;
  int confirmations = 2;
  int probe_every = 50;
  double probe_cost = 0.01;
  double smoothing = 0.2;  // weight of the newest value in a moving average
  int coded_warm_up = 1;   // the step in a row, from 1, in which coding shows what it will go on taking
};

enum class Way { kPlain, kCoded };

struct WayPrices {
  double plain = 0, coded = 0;  // seconds of a step

  double& of(Way way) { return way == Way::kPlain ? plain : coded; }
  double of(Way way) const { return way == Way::kPlain ? plain : coded; }
};

class TwoWayGate {
 public:
  // InvalidArgument: options out of range.
  explicit TwoWayGate(TwoWayOptions options);

  // For `step`, later than the step before; InvalidArgument otherwise. `predicted`: of both ways;
  // `coder_seconds`: of the coded one, among them.
  Way choose(std::int64_t step, WayPrices predicted, double coder_seconds = 0);

  std::int64_t step() const { return step_; }          // of the last choose()
  Way taken() const { return taken_; }                 // by it
  bool probe() const { return probe_; }                // taken to measure it, not because it promises more
  const WayPrices& prices() const { return prices_; }  // predicted, corrected by what was measured before
  // Whether what the step takes says what others will.
  bool believes() const;

  double window() const { return window_.value; }  // seconds; what is believed so far

  // What the step took (the slowest rank), what it should have taken by all that is known now, and how long
  // it could have taken before a rank stood still; only where it is believed. InvalidArgument: seconds that
  // are negative or not finite.
  void observe(double seconds, double predicted, double window = 0);

 private:
  double waited_for(Way way) const;
  WayPrices corrected(WayPrices predicted) const;
  bool probe_is_due(std::int64_t step) const;
  int probe_steps(Way way) const { return way == Way::kCoded ? options_.coded_warm_up : 1; }
  MovingAverage& excess(Way way) { return way == Way::kPlain ? plain_excess_ : coded_excess_; }

  TwoWayOptions options_;
  MovingAverage plain_excess_, coded_excess_;  // seconds measured beyond predicted
  MovingAverage window_;

  std::int64_t step_ = 0;
  Way taken_ = Way::kPlain;
  bool probe_ = false;
  WayPrices prices_;
  double coder_seconds_ = 0;
  int steps_ = 0;
  Way way_ = Way::kPlain;   // taken but for probes
  int settled_ = 0;         // believed measurements of `way_` since it was taken up
  int confirmed_ = 0;       // decisions in which the other way promised more
  int probing_ = 0;         // steps of the probe that are left
  int coded_in_a_row_ = 0;  // steps, this one included
  std::int64_t last_probe_ = 0;
};

}  // namespace moesaic
