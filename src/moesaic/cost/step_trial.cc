#include "moesaic/cost/step_trial.h"

#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

constexpr double kHopeless = 1.5;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace

void StepTrial::stepped() {
  if (trying_) {
    ++tried_;
  } else {
    begin_or_wait();
  }
}

void StepTrial::begin_or_wait() {
  if (--until_trial_ > 0) return;
  // Gates that code nothing have decided already.
  if (plain_ || coded_) {
    trying_ = true;
    tried_ = 0;
  } else {
    until_trial_ = between_;
    mine_.clear();
  }
  coded_ = false;
}

std::optional<StepTrialResult> StepTrial::stepped(double seconds, bool coded) {
  require(std::isfinite(seconds) && seconds > 0, "a step took {} s, expected more than 0", seconds);
  if (!trying_) {
    mine_.push_back(seconds);
    coded_ = coded_ || coded;
    begin_or_wait();
    return std::nullopt;
  }
  ++tried_;
  others_.push_back(seconds);
  const bool hopeless = seconds > kHopeless * median(mine_);
  if (!hopeless && others_.size() < kMeasured) return std::nullopt;
  return end();
}

StepTrialResult StepTrial::end() {
  const double mine = median(mine_), other = median(others_);
  StepTrialResult result{plain_ ? other : mine, plain_ ? mine : other, plain_};
  const double newest = std::log(result.plain_s / result.coded_s);
  log_ratio_ = log_ratio_ ? (*log_ratio_ + newest) / 2 : newest;
  const double gained = plain_ ? *log_ratio_ : -*log_ratio_;
  if (gained > kGain) plain_ = !plain_;
  result.plain = plain_;
  const bool clear = std::abs(*log_ratio_) > kClearly;
  until_trial_ = clear ? kMostBetween : between_;
  between_ = std::min(2 * between_, kMostBetween);
  trying_ = false;
  mine_.clear();
  others_.clear();
  return result;
}

}  // namespace moesaic
