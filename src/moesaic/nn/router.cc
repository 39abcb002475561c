#include "moesaic/nn/router.h"

#include <algorithm>
#include <optional>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/nn/balance.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/gate_exchange.h"
#include "moesaic/nn/gate_formulas.h"
#include "moesaic/nn/router_product.h"
#include "moesaic/nn/softmax_choice.h"

namespace moesaic {

struct RoutingRecord {
  Choices choices;
  Gathered gathered;
  RoutingPlan plan;
};

namespace {

std::span<const float> values(const at::Tensor& contiguous) {
  return {contiguous.data_ptr<float>(), static_cast<std::size_t>(contiguous.numel())};
}

// Another one for each step and layer.
std::uint64_t lane_of(int layer, const StepContext& context) {
  return static_cast<std::uint64_t>(context.step) * context.stats.size() + static_cast<std::uint64_t>(layer);
}

// U(1-jitter, 1+jitter) per element, by global token: the same whichever rank holds the token.
at::Tensor jitter_factors(double jitter, const at::Tensor& x, int layer, const StepContext& context) {
  const std::uint64_t key = random_key(context.seed, "router jitter");
  const std::uint64_t lane = lane_of(layer, context);
  at::Tensor factors = at::empty(x.sizes(), at::kFloat);
  auto* out = factors.data_ptr<float>();
  const std::int64_t first = context.first_token * x.size(1);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[i] = static_cast<float>(
        1.0 + jitter * (2.0 * random_uniform(key, static_cast<std::uint64_t>(first + i), lane) - 1.0));
  }
  return factors;
}

GateInput gate_input(int layer, const StepContext& context) {
  const auto l = static_cast<std::size_t>(layer);
  GateInput input;
  if (l < context.gate_state.size()) input.state = context.gate_state[l];
  input.mask = context.mask;
  input.token_ids = context.token_ids;
  input.training = context.training;
  input.step = context.step;
  input.seed = context.seed;
  input.lane = lane_of(layer, context);
  input.first_token = context.first_token;
  return input;
}

// The logits of a layer, and what its gate makes of them.
class Logits {
 public:
  Logits(const ModelConfig& config, int layer, const GateOptions& options, const at::Tensor& x,
         const at::Tensor& router_weight, const StepContext& context)
      : gate_(gate_named(options.name)), weight_(router_weight) {
    if (!gate_.has_router) return;
    require_shape("mlp.gate", weight_, {options.num_experts, config.d_model});
    require(weight_.scalar_type() == at::kFloat, "mlp.gate: expected fp32, got {}",
            c10::toString(weight_.scalar_type()));
    const double jitter = moe_of(config, layer).jitter;
    input_ = x.to(at::kFloat);
    if (context.training && jitter > 0.0) input_ = input_ * jitter_factors(jitter, x, layer, context);
    raw_ = router_product(input_, weight_);
    if (gate_.noise && context.training) {
      noise_ = at::empty(raw_.sizes(), at::kFloat);
      gate_.noise(options, gate_input(layer, context),
                  {noise_.data_ptr<float>(), static_cast<std::size_t>(noise_.numel())});
    }
    if (gate_.temperature) temperature_ = gate_.temperature(options, context.step);
  }

  // NaN times a zero gradient is NaN: tokens without a route must leave the arithmetic altogether.
  void leave_out(const at::Tensor& valid) {
    raw_ = at::where(valid, router_product(at::where(valid, input_, 0.0), weight_), 0.0);
  }

  const at::Tensor& raw() const { return raw_; }
  // As the gate compares and weighs them.
  at::Tensor seen() const {
    const at::Tensor noisy = noise_.defined() ? raw_ + noise_ : raw_;
    return gate_.temperature ? noisy / temperature_ : noisy;
  }

 private:
  const Gate& gate_;
  at::Tensor weight_, input_, raw_, noise_;
  double temperature_ = 1.0;
};

std::int64_t balance_groups(BalanceScope scope, std::int64_t num_tokens, std::int64_t sequence_length) {
  if (scope != BalanceScope::kSequence) return 1;
  return sequence_length == 0 ? 0 : num_tokens / sequence_length;
}

// f of all ranks: [1,E].
at::Tensor shares_of_all(const Balance& balance, const Gathered& gathered) {
  if (balance.of != Balance::Of::kKeptMass) {
    return global_shares(balance.of == Balance::Of::kFirstChoices ? gathered.first_chosen : gathered.chosen,
                         gathered.valid);
  }
  return mass_shares(at::tensor(gathered.probability, at::kDouble).unsqueeze(0)).to(at::kFloat);
}

// factor * sum_e f_e P_e and the means of logsumexp^2 and of the further loss, as LayerStats wants them.
LayerStats report(const MoeConfig& moe, const Balance& balance, const Choices& choices,
                  const RoutingPlan& plan, const Gathered& gathered, double z, double further) {
  LayerStats stats;
  stats.chosen = gathered.chosen;
  stats.dropped = plan.dropped_capacity;
  stats.dropped_random = plan.dropped_random;
  stats.non_finite = choices.non_finite_tokens;
  if (gathered.valid == 0 || balance.of == Balance::Of::kNone) return stats;
  const auto tokens = static_cast<double>(gathered.valid);
  const double factor =
      moe.balance_convention == "hf" ? static_cast<double>(moe.gate.num_experts) : balance.factor;
  const bool global = moe.balance_scope == BalanceScope::kGlobal;
  const bool first = balance.of == Balance::Of::kFirstChoices, mass = balance.of == Balance::Of::kKeptMass;
  const std::vector<std::int64_t>& counts = first ? gathered.first_chosen : gathered.chosen;
  double total = 0.0;
  for (const double p : gathered.probability) total += p;
  for (std::size_t e = 0; e < gathered.probability.size(); ++e) {
    const double share = mass ? gathered.probability[e] / total : static_cast<double>(counts[e]) / tokens;
    stats.balance_loss += factor * (global ? share : 1.0) * gathered.probability[e] / tokens;
  }
  stats.z_loss = z / tokens;
  stats.gate_loss = further / tokens;
  return stats;
}

// Sum over this rank's tokens of the balance term, averaged over layers; division by step_tokens is left to
// do.
at::Tensor balance_sum(const ModelConfig& config, int layer, double factor, const at::Tensor& sums,
                       const at::Tensor& shares, const std::vector<double>& probability,
                       const Gathered& gathered, StepContext& context) {
  const std::int64_t num_moe_layers = config.num_layers - config.num_dense_layers;
  if (config.moe.balance_convention == "one") {
    return at::sum(sums * shares) * (factor / static_cast<double>(num_moe_layers));
  }
  if (!context.coupled) context.coupled = std::make_shared<CoupledBalance>();
  CoupledBalance& coupled = *context.coupled;
  coupled.chosen.resize(context.stats.size());
  coupled.probability.resize(context.stats.size());
  // A recomputed layer writes what is there already.
  coupled.chosen[static_cast<std::size_t>(layer)].assign(gathered.chosen.begin(), gathered.chosen.end());
  coupled.probability[static_cast<std::size_t>(layer)] = probability;
  return coupled_balance(sums, context.coupled, layer, num_moe_layers, gathered.valid);
}

Choices make_choices(const GateOptions& options, int layer, const at::Tensor& seen, std::int64_t sum_groups,
                     StepContext& context) {
  GateInput input = gate_input(layer, context);
  input.sum_groups = sum_groups;
  if (seen.defined()) input.logits = values(seen);
  const Gathering how = gathering(options, context.training);
  return how == Gathering::kNone ? choose(options, input)
                                 : choose_across(*context.world, layer, how, options, input);
}

void require_finite(const GateOptions& options, int layer, const Gathered& gathered) {
  if (options.non_finite != OnNonFinite::kError || gathered.non_finite_rank < 0) return;
  throw NonFinite(fmt::format("layer {}: the router logits of token {} of rank {} are not finite", layer,
                              gathered.non_finite_token, gathered.non_finite_rank));
}

RoutingPlan make_plan(const GateOptions& options, int layer, const at::Tensor& seen, const Choices& choices,
                      const Gathered& gathered, Communicator& world) {
  ScoredChoices scored;
  const bool by_score = options.priority == Priority::kScore;
  if (by_score) {
    scored = gather_scores(world, layer, options, values(seen), choices, gathered.tokens_of_rank);
  }
  const bool per_rank = options.capacity_scope == CapacityScope::kRank;
  return admit(options, choices, gathered.counts, per_rank ? choices.valid_tokens : gathered.valid,
               world.rank(), world.size(), by_score ? &scored : nullptr);
}

}  // namespace

Routing route(const ModelConfig& config, int layer, const at::Tensor& x, const at::Tensor& router_weight,
              std::int64_t sequence_length, StepContext& context) {
  const MoeConfig& moe = moe_of(config, layer);
  const GateOptions options = context.dropless ? dropless(moe.gate) : moe.gate;
  const Gate& gate = gate_named(options.name);
  const Weighing weighing = gate.weighing(options);
  const Balance balance = gate.balance(options);
  const bool has_losses = balance.of != Balance::Of::kNone;
  const std::int64_t num_tokens = x.size(0), num_experts = options.num_experts;
  const auto l = static_cast<std::size_t>(layer);

  const std::int64_t num_groups = balance_groups(moe.balance_scope, num_tokens, sequence_length);
  Logits logits(config, layer, options, x, router_weight, context);
  at::Tensor seen = gate.has_router ? logits.seen().contiguous() : at::Tensor();
  const std::shared_ptr<const RoutingRecord> kept =
      l < context.kept_routing.size() ? context.kept_routing[l] : nullptr;
  const auto made = kept ? nullptr : std::make_shared<RoutingRecord>();
  if (made) made->choices = make_choices(options, layer, seen, num_groups, context);
  const auto& [choices, gathered, plan] = kept ? *kept : *made;

  at::Tensor valid = at::empty({num_tokens, 1}, at::kFloat);
  std::copy(choices.valid.begin(), choices.valid.end(), valid.data_ptr<float>());
  if (choices.valid_tokens < num_tokens && gate.has_router) {
    logits.leave_out(valid > 0);
    seen = logits.seen().contiguous();
  }
  std::optional<SoftmaxChoice> softmax;
  if (!choices.log_sums.empty()) softmax = softmax_choice(seen, choices);

  const bool global = moe.balance_scope == BalanceScope::kGlobal;
  at::Tensor p, sums, shares;
  std::vector<double> probability(static_cast<std::size_t>(num_experts), 0.0);
  if (has_losses) {
    const bool mass = balance.of == Balance::Of::kKeptMass;
    if (softmax) {
      sums = softmax->sums;
    } else {
      p = expert_probabilities(weighing, seen);
      sums = probability_sums(mass ? p * chosen_mask(choices, num_experts) : p, valid, num_groups);
    }
    if (!global) {
      shares = mass ? mass_shares(sums) : chosen_shares(balance.of, choices, num_experts, num_groups);
    }
    // Scopes other than global know f already: what they tell the others is f * sum p.
    const at::Tensor told = (global ? sums.detach() : sums.detach() * shares).to(at::kDouble).sum(0);
    probability.assign(told.data_ptr<double>(), told.data_ptr<double>() + num_experts);
  }

  if (made) {
    made->gathered = gather_counts(*context.world, layer, choices, probability);
    require_finite(options, layer, gathered);
    made->plan = make_plan(options, layer, seen, choices, gathered, *context.world);
  }

  Routing routing;
  routing.plan = plan;
  routing.weights = softmax ? choice_weights(weighing, *softmax, choices, routing.plan)
                            : choice_weights(weighing, seen, choices, routing.plan);
  const at::Tensor weights = routing.weights.detach().contiguous();
  std::copy_n(weights.data_ptr<float>(), weights.numel(), routing.plan.weights.begin());

  at::Tensor z, further;
  if (has_losses) {
    z = z_sum(softmax ? softmax->log_sums : at::logsumexp(logits.raw(), 1, /*keepdim=*/true), valid);
  }
  if (gate.token_loss) further = token_loss(options, choices, p);
  if (made) {
    context.stats[l] = report(moe, balance, choices, plan, gathered, has_losses ? z.item<double>() : 0.0,
                              further.defined() ? further.item<double>() : 0.0);
  }
  if (made && context.keep_routing) {
    context.kept_routing.resize(context.stats.size());
    context.kept_routing[l] = made;
  }
  const double further_weight = gate.token_loss ? options.*gate.token_loss_coefficient : 0.0;
  if (!context.training || !has_losses ||
      (moe.balance_loss == 0.0 && moe.z_loss == 0.0 && further_weight == 0.0)) {
    return routing;
  }

  if (global) shares = shares_of_all(balance, gathered);
  const at::Tensor sum =
      balance_sum(config, layer, balance.factor, sums, shares, probability, gathered, context);
  const double per_token = context.step_tokens == 0 ? 0.0 : 1.0 / static_cast<double>(context.step_tokens);
  const auto num_moe_layers = static_cast<double>(config.num_layers - config.num_dense_layers);
  routing.auxiliary = sum * (moe.balance_loss * per_token) + z * (moe.z_loss * per_token / num_moe_layers);
  if (further_weight > 0.0) {
    routing.auxiliary = routing.auxiliary + further * (further_weight * per_token / num_moe_layers);
  }
  return routing;
}

const RoutingPlan& plan_of(const RoutingRecord& record) { return record.plan; }

}  // namespace moesaic
