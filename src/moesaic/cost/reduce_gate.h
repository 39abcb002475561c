// reduce_gate.h: whether the gradients of one unit are worth coding on their way between nodes, step by step.
//
// Local, sends nothing; decisions are equal on all ranks under the conditions of two_way_gate.h, with equal
// calibrations and shapes. One gate for each unit and rank. Weighed are the two lossless wires (codec/
// gradient.h), bf16 and entropy. Both leave out blocks of zeros, so what one of them took tells what the
// other would have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "moesaic/codec/gradient.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/reduce_price.h"
#include "moesaic/cost/two_way_gate.h"

namespace moesaic {

// One decision and the facts behind it, for a log. Seconds are of a whole step.
struct ReduceDecision {
  std::int64_t step = 0;
  codec::GradientWire chosen = codec::GradientWire::kBf16;
  bool probe = false;                // taken to measure it, not because it promises more
  double predicted_bf16_s = 0;       // corrected by what was measured so far
  double predicted_entropy_s = 0;    // the same
  double window_s = 0;               // of them, others compute before they need it; measured so far
  std::optional<double> measured_s;  // of `chosen`, once observed
};

class ReduceGate {
 public:
  // `reduces`: of the unit in a step. InvalidArgument: a calibration, shape or options out of range.
  ReduceGate(std::string unit, const Calibration& calibration, ReduceShape shape, int reduces,
             TwoWayOptions options = {});

  // For the reduces of `step`, later than the step before. InvalidArgument otherwise.
  codec::GradientWire choose(std::int64_t step);

  // What the reduces of the last choose() took: `seconds` of the slowest rank, all reduces of the step
  // together; the messages of all ranks: `words` before coding, `message_bytes` after it; `window`: seconds
  // that the reduces could take before a rank stood still. InvalidArgument: seconds that are negative or not
  // finite, negative counts.
  void observe(double seconds, std::int64_t words, std::int64_t message_bytes, double window = 0);

  const ReduceDecision& decision() const { return decision_; }  // the last one

 private:
  double bits_of(codec::GradientWire wire) const;              // of a word that is not left out
  ReducePrediction predicted(codec::GradientWire wire) const;  // of one reduce

  std::string unit_;
  Calibration calibration_;
  ReduceShape shape_;
  int reduces_;
  double smoothing_;
  TwoWayGate gate_;
  MovingAverage sent_;  // the share of words that are not left out
  ReduceDecision decision_;
};

}  // namespace moesaic
