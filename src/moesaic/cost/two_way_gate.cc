#include "moesaic/cost/two_way_gate.h"

#include <cmath>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

// In which connections are made and memory is touched for the first time.
constexpr int kFirstSteps = 2;

// One measurement is believed to differ this far from what was expected: a rank that was stopped for a minute
// says nothing about a way.
constexpr double kMostSurprise = 3;

// Measurements of a way that was just taken up which are its own. From then on they are what both have in
// common.
constexpr int kSettling = 5;

// No price is less than this share of what was predicted.
constexpr double kLeastShare = 0.05;

Way other_than(Way way) { return way == Way::kPlain ? Way::kCoded : Way::kPlain; }

}  // namespace

TwoWayGate::TwoWayGate(TwoWayOptions options) : options_(options) {
  require(std::isfinite(options_.gain) && options_.gain >= 0, "gate: gain is {}, expected at least 0",
          options_.gain);
  require(options_.confirmations >= 1, "gate: confirmations is {}, expected at least 1",
          options_.confirmations);
  require(options_.probe_every >= 1, "gate: probe_every is {}, expected at least 1", options_.probe_every);
  require(options_.probe_cost > 0 && options_.probe_cost <= 1, "gate: probe_cost is {}, expected 0 to 1",
          options_.probe_cost);
  require(options_.smoothing > 0 && options_.smoothing <= 1, "gate: smoothing is {}, expected 0 to 1",
          options_.smoothing);
  require(options_.coded_warm_up >= 1, "gate: coded_warm_up is {}, expected at least 1",
          options_.coded_warm_up);
}

WayPrices TwoWayGate::corrected(WayPrices predicted) const {
  return {std::max(predicted.plain + plain_excess_.value, kLeastShare * predicted.plain),
          std::max(predicted.coded + coded_excess_.value, kLeastShare * predicted.coded)};
}

double TwoWayGate::waited_for(Way way) const {
  // The coder itself may have been measured to be faster than it was said to be.
  const double busy = way == Way::kCoded ? std::min(coder_seconds_, prices_.coded) : 0.0;
  return std::max(prices_.of(way) - window_.value, busy);
}

bool TwoWayGate::probe_is_due(std::int64_t step) const {
  const Way other = other_than(way_);
  const double extra = probe_steps(other) * std::max(waited_for(other) - waited_for(way_), 0.0);
  const double between = static_cast<double>(step - last_probe_);
  return between >= options_.probe_every && extra < options_.probe_cost * between * prices_.of(way_);
}

Way TwoWayGate::choose(std::int64_t step, WayPrices predicted, double coder_seconds) {
  require(steps_ == 0 || step > step_, "choose for step {} after step {}", step, step_);
  step_ = step;
  prices_ = corrected(predicted);
  coder_seconds_ = coder_seconds;
  const Way other = other_than(way_);
  if (steps_ == 0) {
    way_ = prices_.coded < prices_.plain ? Way::kCoded : Way::kPlain;
    last_probe_ = step;
  } else if (probing_ == 0) {
    confirmed_ = waited_for(other) * (1 + options_.gain) < waited_for(way_) ? confirmed_ + 1 : 0;
    if (confirmed_ >= options_.confirmations) {
      way_ = other;
      confirmed_ = 0;
      settled_ = 0;
      last_probe_ = step;  // the way that was left has just been measured
    } else if (probe_is_due(step)) {
      probing_ = probe_steps(other);
      last_probe_ = step;
    }
  }
  ++steps_;
  probe_ = probing_ > 0;
  if (probe_) --probing_;
  taken_ = probe_ ? other_than(way_) : way_;
  coded_in_a_row_ = taken_ == Way::kCoded ? coded_in_a_row_ + 1 : 0;
  return taken_;
}

bool TwoWayGate::believes() const {
  return steps_ > kFirstSteps && (taken_ == Way::kPlain || coded_in_a_row_ >= options_.coded_warm_up);
}

void TwoWayGate::observe(double seconds, double predicted, double window) {
  require(std::isfinite(seconds) && seconds >= 0, "step {} took {} s, expected at least 0", step_, seconds);
  if (!believes() || predicted <= 0) return;
  window_.add(window, options_.smoothing);
  MovingAverage& mine = excess(taken_);
  MovingAverage& other = excess(other_than(taken_));
  const double expected = std::max(predicted + mine.value, kLeastShare * predicted), before = mine.value;
  mine.add(std::clamp(seconds, expected / kMostSurprise, expected * kMostSurprise) - predicted,
           options_.smoothing);
  if (probe_) return;
  if (other.count == 0) {
    other.value = mine.value;
  } else if (++settled_ > kSettling) {
    other.value += mine.value - before;
  }
}

}  // namespace moesaic
