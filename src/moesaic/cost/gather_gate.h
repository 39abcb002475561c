// gather_gate.h: whether the gather of one unit is worth coding, step by step.
//
// Local, sends nothing. All ranks make the same decisions as long as they observe the same: calibration,
// shape, options and the arguments of every call must be equal on all ranks (gathered facts). One gate for
// each unit and rank. choose() before a step's gathers, observe() after them; a step may be left unobserved.
//
// Prices are predict()'s (gather_price.h), with the bits a word last seen, plus what each of the two ways,
// raw and coded, was measured to take beyond that: a moving average (the plain mean of the first few). Most
// of that is waiting for ranks that come late, which either way would have to do: what the way that is taken
// takes more or less than before is taken to be so for the other one, too, until that is measured. The first
// steps, which set up connections and memory, are not believed, and no single step is believed to be more
// than three times as slow or as fast as expected.
//
// A way is left for the other when it promises to be more than `gain` faster in `confirmations` decisions one
// after another. What nobody takes, nobody measures: so every `probe_every` steps the other way is taken for
// a moment; later than that where such a look would cost more than `probe_cost` of the time between two of
// them (2% slower than the better way is too slow, and the worse way may be five times as slow).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/codec/method.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/gather_price.h"

namespace moesaic {

struct GatherGateOptions {
  std::optional<codec::Method> fixed;              // always this one; nothing is decided or probed
  codec::Method coded = codec::Method::kMomentum;  // what is weighed against raw; lossless
  double gain = 0.05;
  int confirmations = 2;
  int probe_every = 50;
  double probe_cost = 0.01;
  double smoothing = 0.2;  // weight of the newest value in a moving average
};

// One decision and the facts behind it, for a log. Seconds are of a whole step.
struct GatherDecision {
  std::string unit;
  std::int64_t step = 0;
  codec::Method chosen = codec::Method::kRaw;
  bool probe = false;                              // taken to measure it, not because it promises more
  codec::Method coded = codec::Method::kMomentum;  // what was weighed against raw
  double bits_per_word = 0;                        // expected of `coded`
  double predicted_raw_s = 0;                      // corrected by what was measured so far
  double predicted_coded_s = 0;
  std::optional<double> measured_s;  // of `chosen`, once observed
};

class GatherGate {
 public:
  // InvalidArgument: a calibration, shape or options out of range; a coded method that is raw or lossy.
  GatherGate(std::string unit, const Calibration& calibration, GatherShape shape,
             GatherGateOptions options = {});

  // For the gathers of `step`, later than the step before. InvalidArgument otherwise.
  codec::Method choose(std::int64_t step);

  // What the gathers of the last choose() took: `seconds` of the slowest rank, all gathers of the step
  // together; `message_bytes`: the messages of all parts as they were coded (headers included), each counted
  // once, where `method` is not raw. InvalidArgument: another step or method than was chosen, seconds that
  // are negative or not finite, negative bytes.
  void observe(std::int64_t step, codec::Method method, double seconds, std::int64_t message_bytes);

  // The last one.
  const GatherDecision& decision() const { return decision_; }

 private:
  enum Way { kRaw, kCoded, kWays };
  struct Average {
    double value = 0;
    int count = 0;  // of what it is the mean of, up to where the newest weighs `smoothing`
  };
  void update(Average& average, double value) const;
  double price(codec::Method method) const;
  bool probe_is_due(std::int64_t step, const std::array<double, kWays>& price) const;

  Calibration calibration_;
  GatherShape shape_;
  GatherGateOptions options_;
  std::int64_t words_ = 0;
  std::array<Average, std::size(codec::kMethods)> bits_{};  // by Method
  std::array<Average, kWays> excess_{};                     // seconds measured beyond predicted

  GatherDecision decision_;
  int steps_ = 0;
  int settled_ = 0;         // believed measurements of `way_` since it was taken up
  Way way_ = kRaw;          // taken but for probes
  int confirmed_ = 0;       // decisions in which the other way promised more
  int probing_ = 0;         // steps of the probe that are left
  int coded_in_a_row_ = 0;  // steps, this one included
  std::int64_t last_probe_ = 0;
};

}  // namespace moesaic
