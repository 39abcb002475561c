#include "moesaic/cost/reduce_gate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "moesaic/core/error.h"

namespace moesaic {

using codec::GradientWire;

ReduceGate::ReduceGate(std::string unit, const Calibration& calibration, ReduceShape shape, int reduces,
                       TwoWayOptions options)
    : unit_(std::move(unit)),
      calibration_(calibration),
      shape_(std::move(shape)),
      reduces_(reduces),
      smoothing_(options.smoothing),
      gate_(options) {
  require_valid(calibration_);
  require(reduces >= 1, "gate of {}: got {} reduces a step, expected at least 1", unit_, reduces);
  (void)predict_reduce(calibration_, shape_, false, 1);
  sent_.value = 1;
}

double ReduceGate::bits_of(GradientWire wire) const {
  return wire == GradientWire::kBf16 ? 16 : calibration_.gradients.bits_per_word;
}

ReducePrediction ReduceGate::predicted(GradientWire wire) const {
  return predict_reduce(calibration_, shape_, wire != GradientWire::kBf16, bits_of(wire) * sent_.value);
}

GradientWire ReduceGate::choose(std::int64_t step) {
  const ReducePrediction plain = predicted(GradientWire::kBf16), coded = predicted(GradientWire::kEntropy);
  const Way way = gate_.choose(step, {.plain = reduces_ * plain.total(), .coded = reduces_ * coded.total()},
                               reduces_ * (coded.encode + coded.decode));
  decision_ = {.step = step,
               .chosen = way == Way::kCoded ? GradientWire::kEntropy : GradientWire::kBf16,
               .probe = gate_.probe(),
               .predicted_bf16_s = gate_.prices().plain,
               .predicted_entropy_s = gate_.prices().coded,
               .window_s = gate_.window(),
               .measured_s = {}};
  return decision_.chosen;
}

void ReduceGate::observe(double seconds, std::int64_t words, std::int64_t message_bytes, double window) {
  require(words >= 0 && message_bytes >= 0, "gate of {}: step {} sent {} words in {} bytes", unit_,
          decision_.step, words, message_bytes);
  require(std::isfinite(seconds) && seconds >= 0, "gate of {}: step {} took {} s, expected at least 0", unit_,
          decision_.step, seconds);
  require(std::isfinite(window) && window >= 0,
          "gate of {}: step {} had a window of {} s, expected at least 0", unit_, decision_.step, window);
  decision_.measured_s = seconds;
  if (!gate_.believes() || words == 0) return;
  const double bits = 8.0 * static_cast<double>(message_bytes) / static_cast<double>(words);
  sent_.add(std::min(1.0, bits / bits_of(decision_.chosen)), smoothing_);
  gate_.observe(seconds, reduces_ * predicted(decision_.chosen).total(), window);
}

}  // namespace moesaic
