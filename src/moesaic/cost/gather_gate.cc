#include "moesaic/cost/gather_gate.h"

#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

// Steps of a coded method until its figures are those it will keep: a key or an old reference, then a
// difference without the one before it, then the first that counts.
constexpr int kCodedWarmUp = 3;

// In which connections are made and memory is touched for the first time.
constexpr int kFirstSteps = 2;

// One measurement is believed to differ this far from what was expected: a rank that was stopped for a minute
// says nothing about a method.
constexpr double kMostSurprise = 3;

// Measurements of a way that was just taken up which are its own. From then on they are what both have in
// common.
constexpr int kSettling = 5;

// No price is less than this share of what was predicted.
constexpr double kLeastShare = 0.05;

int probe_steps(bool coded) { return coded ? kCodedWarmUp : 1; }

}  // namespace

GatherGate::GatherGate(std::string unit, const Calibration& calibration, GatherShape shape,
                       GatherGateOptions options)
    : calibration_(calibration), shape_(std::move(shape)), options_(std::move(options)) {
  require_valid(calibration_);
  words_ = load_of(shape_).all;
  const codec::Method coded = options_.fixed.value_or(options_.coded);
  require(options_.fixed || (coded != codec::Method::kRaw && codec::lossless(coded)),
          "gate: {} is no choice for it, expected a lossless method other than raw", codec::name_of(coded));
  decision_.coded = coded == codec::Method::kRaw ? options_.coded : coded;
  require(std::isfinite(options_.gain) && options_.gain >= 0, "gate: gain is {}, expected at least 0",
          options_.gain);
  require(options_.confirmations >= 1, "gate: confirmations is {}, expected at least 1",
          options_.confirmations);
  require(options_.probe_every >= 1, "gate: probe_every is {}, expected at least 1", options_.probe_every);
  require(options_.probe_cost > 0 && options_.probe_cost <= 1, "gate: probe_cost is {}, expected 0 to 1",
          options_.probe_cost);
  require(options_.smoothing > 0 && options_.smoothing <= 1, "gate: smoothing is {}, expected 0 to 1",
          options_.smoothing);
  decision_.unit = std::move(unit);
  for (const codec::Method method : codec::kMethods) {
    bits_[static_cast<std::size_t>(method)].value =
        method == codec::Method::kRaw ? 16 : calibration_.rates_of(method).bits_per_word;
  }
}

void GatherGate::update(Average& average, double value) const {
  ++average.count;
  average.value += std::max(options_.smoothing, 1.0 / average.count) * (value - average.value);
}

double GatherGate::price(codec::Method method) const {
  const Way way = method == codec::Method::kRaw ? kRaw : kCoded;
  const double predicted =
      predict(calibration_, shape_, method, bits_[static_cast<std::size_t>(method)].value).total;
  return std::max(predicted + excess_[way].value, kLeastShare * predicted);
}

bool GatherGate::probe_is_due(std::int64_t step, const std::array<double, kWays>& price) const {
  const Way other = way_ == kRaw ? kCoded : kRaw;
  const double extra = probe_steps(other == kCoded) * std::max(price[other] - price[way_], 0.0);
  const double between = static_cast<double>(step - last_probe_);
  return between >= options_.probe_every && extra < options_.probe_cost * between * price[way_];
}

codec::Method GatherGate::choose(std::int64_t step) {
  require(steps_ == 0 || step > decision_.step, "gate of {}: choose for step {} after step {}",
          decision_.unit, step, decision_.step);
  decision_.step = step;
  decision_.measured_s.reset();
  decision_.probe = false;
  decision_.bits_per_word = bits_[static_cast<std::size_t>(decision_.coded)].value;
  const std::array<double, kWays> price{this->price(codec::Method::kRaw), this->price(decision_.coded)};
  decision_.predicted_raw_s = price[kRaw];
  decision_.predicted_coded_s = price[kCoded];

  if (options_.fixed) {
    way_ = *options_.fixed == codec::Method::kRaw ? kRaw : kCoded;
  } else if (steps_ == 0) {
    way_ = price[kCoded] < price[kRaw] ? kCoded : kRaw;
    last_probe_ = step;
  } else if (probing_ == 0) {
    const Way other = way_ == kRaw ? kCoded : kRaw;
    confirmed_ = price[other] * (1 + options_.gain) < price[way_] ? confirmed_ + 1 : 0;
    if (confirmed_ >= options_.confirmations) {
      way_ = other;
      confirmed_ = 0;
      settled_ = 0;
      last_probe_ = step;  // the way that was left has just been measured
    } else if (probe_is_due(step, price)) {
      probing_ = probe_steps(other == kCoded);
      last_probe_ = step;
    }
  }
  ++steps_;
  Way taken = way_;
  if (probing_ > 0) {
    taken = way_ == kRaw ? kCoded : kRaw;
    decision_.probe = true;
    --probing_;
  }
  coded_in_a_row_ = taken == kCoded ? coded_in_a_row_ + 1 : 0;
  decision_.chosen = taken == kCoded ? decision_.coded : codec::Method::kRaw;
  return decision_.chosen;
}

void GatherGate::observe(std::int64_t step, codec::Method method, double seconds,
                         std::int64_t message_bytes) {
  require(steps_ > 0 && step == decision_.step && method == decision_.chosen,
          "gate of {}: observed step {} by {}, expected step {} by {}", decision_.unit, step,
          codec::name_of(method), decision_.step, codec::name_of(decision_.chosen));
  require(std::isfinite(seconds) && seconds >= 0, "gate of {}: step {} took {} s, expected at least 0",
          decision_.unit, step, seconds);
  require(message_bytes >= 0, "gate of {}: step {} sent {} bytes, expected at least 0", decision_.unit, step,
          message_bytes);
  decision_.measured_s = seconds;
  const bool coded = method != codec::Method::kRaw;
  if (steps_ <= kFirstSteps || (coded && coded_in_a_row_ < kCodedWarmUp)) return;
  double bits = 16;
  if (coded && words_ > 0) {
    if (message_bytes == 0) return;  // nothing was sent: the version is the one before
    bits = 8.0 * static_cast<double>(message_bytes) / static_cast<double>(words_);
    update(bits_[static_cast<std::size_t>(method)], bits);
  }
  const double predicted = predict(calibration_, shape_, method, bits).total;
  if (predicted <= 0) return;
  Average& mine = excess_[coded ? kCoded : kRaw];
  Average& other = excess_[coded ? kRaw : kCoded];
  const double expected = std::max(predicted + mine.value, kLeastShare * predicted), before = mine.value;
  update(mine, std::clamp(seconds, expected / kMostSurprise, expected * kMostSurprise) - predicted);
  if (decision_.probe) return;
  if (other.count == 0) {
    other.value = mine.value;
  } else if (++settled_ > kSettling) {
    other.value += mine.value - before;
  }
}

}  // namespace moesaic
