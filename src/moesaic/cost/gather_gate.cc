#include "moesaic/cost/gather_gate.h"

#include <cmath>
#include <utility>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

// Steps of a coded method until its figures are those it will keep: a key or an old reference, then a
// difference without the one before it, then the first that counts.
constexpr int kCodedWarmUp = 3;
constexpr double kRawBits = 16;

TwoWayOptions of_gathers(TwoWayOptions options) {
  options.coded_warm_up = kCodedWarmUp;
  return options;
}

}  // namespace

GatherGate::GatherGate(std::string unit, const Calibration& calibration, GatherShape shape,
                       GatherGateOptions options)
    : calibration_(calibration),
      shape_(std::move(shape)),
      gate_(of_gathers(options.gate)),
      smoothing_(options.gate.smoothing) {
  require_valid(calibration_);
  words_ = load_of(shape_).all;
  require(options.coded != codec::Method::kRaw && codec::lossless(options.coded),
          "gate: {} is no choice for it, expected a lossless method other than raw",
          codec::name_of(options.coded));
  bits_.value = calibration_.rates_of(options.coded).bits_per_word;
  decision_.unit = std::move(unit);
  decision_.coded = options.coded;
}

Prediction GatherGate::predicted(codec::Method method, double bits) const {
  return predict(calibration_, shape_, method, bits);
}

codec::Method GatherGate::choose(std::int64_t step) {
  const Prediction coded = predicted(decision_.coded, bits_.value);
  const Way way =
      gate_.choose(step, {.plain = predicted(codec::Method::kRaw, kRawBits).total, .coded = coded.total},
                   coded.encode + coded.decode);
  decision_.step = step;
  decision_.chosen = way == Way::kCoded ? decision_.coded : codec::Method::kRaw;
  decision_.probe = gate_.probe();
  decision_.bits_per_word = bits_.value;
  decision_.predicted_raw_s = gate_.prices().plain;
  decision_.predicted_coded_s = gate_.prices().coded;
  decision_.window_s = gate_.window();
  decision_.measured_s.reset();
  return decision_.chosen;
}

void GatherGate::observe(std::int64_t step, codec::Method method, double seconds, std::int64_t message_bytes,
                         double window) {
  require(step == decision_.step && method == decision_.chosen,
          "gate of {}: observed step {} by {}, expected step {} by {}", decision_.unit, step,
          codec::name_of(method), decision_.step, codec::name_of(decision_.chosen));
  require(message_bytes >= 0, "gate of {}: step {} sent {} bytes, expected at least 0", decision_.unit, step,
          message_bytes);
  require(std::isfinite(seconds) && seconds >= 0, "gate of {}: step {} took {} s, expected at least 0",
          decision_.unit, step, seconds);
  require(std::isfinite(window) && window >= 0,
          "gate of {}: step {} had a window of {} s, expected at least 0", decision_.unit, decision_.step,
          window);
  decision_.measured_s = seconds;
  if (!gate_.believes()) return;
  double bits = kRawBits;
  if (method != codec::Method::kRaw && words_ > 0) {
    if (message_bytes == 0) return;  // nothing was sent: the version is the one before
    bits = 8.0 * static_cast<double>(message_bytes) / static_cast<double>(words_);
    bits_.add(bits, smoothing_);
  }
  gate_.observe(seconds, predicted(method, bits).total, window);
}

}  // namespace moesaic
