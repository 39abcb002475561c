#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate.h"

namespace moesaic {

void validate(const GateOptions& options) {
  require(options.num_experts >= 1, "gate: num_experts is {}, expected at least 1", options.num_experts);
  require(options.top_k >= 1 && options.top_k <= options.num_experts,
          "gate: top_k is {}, expected 1 to num_experts ({})", options.top_k, options.num_experts);
  require(std::isfinite(options.capacity_factor) && options.capacity_factor >= 0.0,
          "gate: capacity_factor is {}, expected a finite number, 0 (dropless) or more",
          options.capacity_factor);
  require(options.min_capacity >= 0, "gate: min_capacity is {}, expected 0 or more", options.min_capacity);
  if (options.kind == GateKind::kSwitch) {
    require(options.top_k == 1, "gate: top_k is {} with the switch gate, expected 1", options.top_k);
    // Normalised over its only choice, a weight is 1 and the router gets no gradient.
    require(options.normalise == Normalise::kNone,
            "gate: normalise is before_drop or after_drop with the switch gate, expected none");
    require(options.score == ScoreKind::kSoftmax,
            "gate: score is sigmoid with the switch gate, expected softmax");
  }
  require(!options.bias_balance || options.score == ScoreKind::kSigmoid,
          "gate: bias_balance is on with score softmax, expected score sigmoid");
  const bool scaled = options.score == ScoreKind::kSigmoid && options.normalise != Normalise::kNone;
  require(std::isfinite(options.route_scale) && options.route_scale > 0.0,
          "gate: route_scale is {}, expected a finite number above 0", options.route_scale);
  require(scaled || options.route_scale == 1.0,
          "gate: route_scale is {}, expected 1 unless score is sigmoid and weights are normalised",
          options.route_scale);
}

std::int64_t expert_capacity(const GateOptions& options, std::int64_t valid_tokens) {
  require(valid_tokens >= 0, "gate: {} valid tokens, expected 0 or more", valid_tokens);
  if (options.capacity_factor == 0.0) return -1;
  const double share =
      std::ceil(options.capacity_factor * static_cast<double>(options.top_k) *
                static_cast<double>(valid_tokens) / static_cast<double>(options.num_experts));
  // Compared before the cast: a large factor may exceed int64.
  if (share >= static_cast<double>(valid_tokens)) return valid_tokens;
  return std::min(std::max(static_cast<std::int64_t>(share), options.min_capacity), valid_tokens);
}

}  // namespace moesaic
