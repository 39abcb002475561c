#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void check_what_the_gate_takes(const Gate& gate, const GateOptions& options) {
  require(gate.top_k == 0 || options.top_k == gate.top_k, "gate: top_k is {} with the {} gate, expected {}",
          options.top_k, gate.name, gate.top_k);
  const bool plain = options.normalise == Normalise::kPaper || options.normalise == Normalise::kNone;
  require(gate.normalises || plain,
          "gate: normalise is before_drop or after_drop with the {} gate, expected none or paper", gate.name);
  refuse_foreign_options(options);
  require(gate.capacity != Gate::Capacity::kNone || options.capacity_factor == 0.0,
          "gate: capacity_factor is {} with the {} gate, expected 0: it has no capacity",
          options.capacity_factor, gate.name);
  require(gate.capacity != Gate::Capacity::kRequired || options.capacity_factor > 0.0,
          "gate: capacity_factor is {} with the {} gate, expected above 0", options.capacity_factor,
          gate.name);
  require(options.priority == Priority::kOrder ||
              (options.capacity_factor > 0.0 && gate.ordered && gate.has_router),
          "gate: priority is score with the {} gate and capacity_factor {}, expected order: there is nothing "
          "to drop by score",
          gate.name, options.capacity_factor);
}

}  // namespace

void validate(const GateOptions& options) {
  require(options.num_experts >= 1, "gate: num_experts is {}, expected at least 1", options.num_experts);
  require(options.top_k >= 1 && options.top_k <= options.num_experts,
          "gate: top_k is {}, expected 1 to num_experts ({})", options.top_k, options.num_experts);
  require(std::isfinite(options.capacity_factor) && options.capacity_factor >= 0.0,
          "gate: capacity_factor is {}, expected a finite number, 0 (dropless) or more",
          options.capacity_factor);
  require(options.min_capacity >= 0, "gate: min_capacity is {}, expected 0 or more", options.min_capacity);
  const Gate& gate = gate_named(options.name);
  check_what_the_gate_takes(gate, options);
  require(std::isfinite(options.bias_update_rate) && options.bias_update_rate >= 0.0,
          "gate: bias_update_rate is {}, expected a finite number, 0 or more", options.bias_update_rate);
  require(!options.bias_balance || options.score == ScoreKind::kSigmoid,
          "gate: bias_balance is on with score softmax, expected score sigmoid");
  const bool scaled = options.score == ScoreKind::kSigmoid && normalise_of(options) != Normalise::kNone;
  require(std::isfinite(options.route_scale) && options.route_scale > 0.0,
          "gate: route_scale is {}, expected a finite number above 0", options.route_scale);
  require(scaled || options.route_scale == 1.0,
          "gate: route_scale is {}, expected 1 unless score is sigmoid and weights are normalised",
          options.route_scale);
  require(options.num_groups >= 1 && options.num_experts % options.num_groups == 0,
          "gate: num_groups is {}, expected a divisor of num_experts ({})", options.num_groups,
          options.num_experts);
  require(options.kept_groups >= 1 && options.kept_groups <= options.num_groups,
          "gate: kept_groups is {}, expected 1 to num_groups ({})", options.kept_groups, options.num_groups);
  if (gate.check) gate.check(options);
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
