// dense_to_sparse: all experts at first, fewer as a temperature falls: those whose share of a softmax with
// Gumbel noise is above a threshold. Nie et al. 2021 (arXiv 2112.14397).
#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void check(const GateOptions& options) {
  require(options.threshold >= 0.0 && options.threshold < 1.0, "gate: threshold is {}, expected 0 up to 1",
          options.threshold);
  for (const double temperature : {options.first_temperature, options.last_temperature}) {
    require(std::isfinite(temperature) && temperature > 0.0,
            "gate: a temperature is {}, expected a finite number above 0", temperature);
  }
  require(options.cooling_steps >= 1, "gate: cooling_steps is {}, expected 1 or more", options.cooling_steps);
  require(options.sparse_after >= 0, "gate: sparse_after is {}, expected 0 (never) or more",
          options.sparse_after);
}

double temperature_at(const GateOptions& options, std::int64_t step) {
  const double done = std::min(1.0, static_cast<double>(step) / static_cast<double>(options.cooling_steps));
  const double first = options.first_temperature, last = options.last_temperature;
  if (options.cooling == Cooling::kLinear) return first + (last - first) * done;
  return first * std::pow(last / first, done);
}

// -log(-log(u)) by global token.
void draw_gumbel(const GateOptions& options, const GateInput& input, std::span<float> noise) {
  const std::uint64_t key = random_key(input.seed, "gumbel");
  const auto first = static_cast<std::uint64_t>(input.first_token * options.num_experts);
  for (std::size_t i = 0; i < noise.size(); ++i) {
    // The middle of one of 2^24 intervals: never 0 or 1.
    const double u = static_cast<double>(random_uniform(key, first + i, input.lane)) + 0x1p-25;
    noise[i] = static_cast<float>(-std::log(-std::log(u)));
  }
}

// The best is always kept.
void keep_above_threshold(const GateOptions& options, const GateInput& input, std::span<std::int32_t> ids) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const bool sparse = options.sparse_after > 0 && input.step >= options.sparse_after;
  const std::vector<float> q = softmax_rows(input.logits, options.num_experts);
  for (std::size_t begin = 0; begin < ids.size(); begin += num_experts) {
    const auto h = input.logits.subspan(begin, num_experts);
    const auto best = static_cast<std::size_t>(std::ranges::max_element(h) - h.begin());
    for (std::size_t e = 0; e < num_experts; ++e) {
      const bool kept = e == best || (!sparse && static_cast<double>(q[begin + e]) > options.threshold);
      ids[begin + e] = kept ? static_cast<std::int32_t>(e) : -1;
    }
  }
}

}  // namespace

extern const Gate kDenseToSparseGate;
const Gate kDenseToSparseGate{
    .name = "dense_to_sparse",
    .top_k = 1,  // what it comes to
    .capacity = Gate::Capacity::kNone,
    .own_options = {"threshold", "first_temperature", "last_temperature", "cooling_steps", "cooling",
                    "sparse_after"},
    .check = check,
    .max_choices = [](const GateOptions& options) { return options.num_experts; },
    .ordered = false,
    .choose = keep_above_threshold,
    .noise = draw_gumbel,
    .temperature = temperature_at,
    .weighing = [](const GateOptions&) { return Weighing{}; },
    .balance =
        [](const GateOptions& options) {
          return Balance{Balance::Of::kKeptMass, static_cast<double>(options.num_experts)};
        },
};

}  // namespace moesaic
