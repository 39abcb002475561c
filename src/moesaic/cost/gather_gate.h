// gather_gate.h: whether the gather of one unit is worth coding, step by step.
//
// Local, sends nothing; decisions are equal on all ranks under the conditions of two_way_gate.h, with equal
// calibrations and shapes. One gate for each unit and rank. Prices are predict()'s (gather_price.h), with the
// bits a word last seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/codec/method.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/gather_price.h"
#include "moesaic/cost/two_way_gate.h"

namespace moesaic {

struct GatherGateOptions {
  codec::Method coded = codec::Method::kMomentum;  // what is weighed against raw; lossless
  TwoWayOptions gate = {};                         // but for coded_warm_up, which is the codec's
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
  double window_s = 0;               // of them, others compute before they need it; measured so far
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
  // once, where `method` is not raw; `window`: seconds that the gathers could take before a rank stood still.
  // InvalidArgument: another step or method than was chosen, seconds that are negative or not finite,
  // negative bytes.
  void observe(std::int64_t step, codec::Method method, double seconds, std::int64_t message_bytes,
               double window = 0);

  // The last one.
  const GatherDecision& decision() const { return decision_; }

 private:
  Prediction predicted(codec::Method method, double bits) const;

  Calibration calibration_;
  GatherShape shape_;
  TwoWayGate gate_;
  double smoothing_;
  std::int64_t words_ = 0;
  MovingAverage bits_;  // of the coded method
  GatherDecision decision_;
};

}  // namespace moesaic
