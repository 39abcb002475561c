#include "moesaic/train/mixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

constexpr double kLongestPeriod = 1e6;

// The weights times `scale` where those are whole (but for the rounding of decimals) and few enough.
std::optional<std::vector<std::int64_t>> whole(std::span<const double> weights, double scale) {
  std::vector<std::int64_t> shares;
  double sum = 0;
  for (const double weight : weights) {
    const double scaled = weight * scale, rounded = std::round(scaled);
    sum += rounded;
    if (std::abs(scaled - rounded) > 1e-9 || (weight > 0) != (rounded > 0) || sum > kLongestPeriod)
      return std::nullopt;
    shares.push_back(static_cast<std::int64_t>(rounded));
  }
  return shares;
}

std::vector<std::int64_t> shares_of(std::span<const double> weights) {
  for (double scale = 1; scale <= 1e6; scale *= 10) {
    if (auto shares = whole(weights, scale)) {
      std::int64_t divisor = 0;
      for (const std::int64_t share : *shares) divisor = std::gcd(divisor, share);
      for (std::int64_t& share : *shares) share /= divisor;
      return *shares;
    }
  }
  const double largest = std::ranges::max(weights);  // divided by first: the sum may overflow
  double sum = 0;
  for (const double weight : weights) sum += weight / largest;
  std::vector<std::int64_t> shares;
  for (const double weight : weights) {
    const auto share = std::llround(weight / largest / sum * kLongestPeriod);
    shares.push_back(weight > 0 ? std::max(share, 1LL) : 0);
  }
  return shares;
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  bool any = false;
  for (const double weight : weights) {
    require(std::isfinite(weight) && weight >= 0, "a weight is {}, expected a finite number of at least 0",
            weight);
    any = any || weight > 0;
  }
  require(any, "all weights are 0, expected one above");
  shares_ = shares_of(weights);
  const std::int64_t period = std::accumulate(shares_.begin(), shares_.end(), std::int64_t{0});
  std::vector<std::int64_t> drawn(shares_.size(), 0);
  for (std::int64_t n = 0; n < period; ++n) {
    std::size_t next = shares_.size();
    auto earliest = std::numeric_limits<std::int64_t>::max();
    for (std::size_t source = 0; source < shares_.size(); ++source) {
      const std::int64_t share = shares_[source], j = drawn[source];
      if (share == 0 || j * period / share > n) continue;
      const std::int64_t due = ((j + 1) * period + share - 1) / share;
      if (due >= earliest) continue;
      earliest = due;
      next = source;
    }
    places_.push_back({static_cast<std::uint32_t>(next), static_cast<std::uint32_t>(drawn.at(next)++)});
  }
}

Mixture::Place Mixture::at(std::int64_t sample) const {
  const auto [source, nth] = places_[static_cast<std::size_t>(sample % period())];
  return {source, sample / period() * shares_[source] + nth};
}

}  // namespace moesaic
