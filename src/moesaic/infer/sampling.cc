#include "moesaic/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {
namespace {

// Uniform in [0,1), 53 bits: fp32's 24 would never draw a token less likely than 2^-24.
double uniform(std::uint64_t seed, std::uint64_t position) {
  const std::uint64_t bits = random_bits(random_key(seed, "generate"), position);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

// Ids that may be drawn, likeliest first where order mattered, else all. weights [V]: exp(logit / T) up to a
// factor.
std::vector<std::int64_t> candidates(std::span<const double> weights, const SamplingOptions& options) {
  std::vector<std::int64_t> ids(weights.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto size = std::ssize(ids);
  const std::int64_t most = options.top_k == 0 ? size : std::min(options.top_k, size);
  if (most == size && options.top_p == 1.0) return ids;
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    const double wa = weights[static_cast<std::size_t>(a)], wb = weights[static_cast<std::size_t>(b)];
    return wa != wb ? wa > wb : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + most, ids.end(), likelier);
  ids.resize(static_cast<std::size_t>(most));
  if (options.top_p == 1.0) return ids;
  double total = 0.0, sum = 0.0;
  for (const std::int64_t id : ids) total += weights[static_cast<std::size_t>(id)];
  std::size_t kept = 0;
  while (kept < ids.size() && (kept == 0 || sum < options.top_p * total)) {
    sum += weights[static_cast<std::size_t>(ids[kept++])];
  }
  ids.resize(kept);
  return ids;
}

}  // namespace

void validate(const SamplingOptions& options) {
  require(std::isfinite(options.temperature) && options.temperature >= 0,
          "temperature is {}, expected 0 (greedy) or more", options.temperature);
  require(options.top_k >= 0, "top_k is {}, expected 0 (all tokens) or more", options.top_k);
  require(options.top_p > 0 && options.top_p <= 1, "top_p is {}, expected above 0 and at most 1",
          options.top_p);
}

std::int64_t sample(std::span<const float> logits, const SamplingOptions& options, std::uint64_t seed,
                    std::uint64_t position) {
  // NaN loses every comparison: it is never the best, and never drawn.
  std::size_t best = 0;
  for (std::size_t v = 1; v < logits.size(); ++v) {
    if (logits[v] > logits[best] || std::isnan(logits[best])) best = v;
  }
  if (logits.empty() || !std::isfinite(logits[best])) {
    throw NonFinite(fmt::format("the likeliest of {} logits is not a finite number", logits.size()));
  }
  if (options.temperature == 0) return static_cast<std::int64_t>(best);

  std::vector<double> weights(logits.size());
  for (std::size_t v = 0; v < logits.size(); ++v) {
    const double below = static_cast<double>(logits[v]) - static_cast<double>(logits[best]);
    weights[v] = std::isnan(below) ? 0.0 : std::exp(below / options.temperature);
  }
  std::vector<std::int64_t> ids = candidates(weights, options);
  std::ranges::sort(ids);  // two tokens that swap places by rounding keep their parts of [0,1)
  double total = 0.0;
  for (const std::int64_t id : ids) total += weights[static_cast<std::size_t>(id)];
  const double drawn = uniform(seed, position) * total;
  double sum = 0.0;
  for (const std::int64_t id : ids) {
    sum += weights[static_cast<std::size_t>(id)];
    if (drawn < sum) return id;
  }
  return static_cast<std::int64_t>(best);  // rounding left a hair between the sums
}

}  // namespace moesaic
