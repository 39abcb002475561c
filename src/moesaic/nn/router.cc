#include "moesaic/nn/router.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/nn/balance.h"
#include "moesaic/nn/checks.h"

namespace moesaic {
namespace {

std::span<const float> values(const at::Tensor& contiguous) {
  return {contiguous.data_ptr<float>(), static_cast<std::size_t>(contiguous.numel())};
}

// U(1-jitter, 1+jitter) per element, by global token: the same whichever rank holds the token.
at::Tensor jitter_factors(double jitter, const at::Tensor& x, int layer, const StepContext& context) {
  const std::uint64_t key = random_key(context.seed, "router jitter");
  const std::uint64_t lane =
      static_cast<std::uint64_t>(context.step) * context.stats.size() + static_cast<std::uint64_t>(layer);
  at::Tensor factors = at::empty(x.sizes(), at::kFloat);
  auto* out = factors.data_ptr<float>();
  const std::int64_t first = context.first_token * x.size(1);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[i] = static_cast<float>(
        1.0 + jitter * (2.0 * random_uniform(key, static_cast<std::uint64_t>(first + i), lane) - 1.0));
  }
  return factors;
}

// What the ranks tell each other about a layer: one message of integers.
struct Gathered {
  std::vector<std::int64_t> counts;  // [W,K,E]
  std::vector<std::int64_t> chosen;  // [E] over ranks and choices
  std::vector<double> probability;   // [E] sums over ranks, for the reported balance loss
  std::int64_t valid = 0;
  int non_finite_rank = -1;  // the lowest one with such tokens
  std::int64_t non_finite_token = -1;
};

}  // namespace

struct RoutingRecord {
  Choices choices;
  Gathered gathered;
  RoutingPlan plan;
};

namespace {

Gathered gather(Communicator& world, int layer, const Choices& choices,
                const std::vector<double>& probability) {
  const Span span(world.tracer(), {.phase = Phase::kCounts, .name = "router counts", .index = layer});
  const std::size_t num_counts = choices.counts.size(), num_experts = probability.size();
  const std::size_t part = num_counts + 2 + num_experts;
  std::vector<std::int64_t> mine = choices.counts;
  mine.push_back(choices.valid_tokens);
  mine.push_back(choices.first_non_finite);
  for (const double p : probability) mine.push_back(std::bit_cast<std::int64_t>(p));

  const auto num_ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> all(part * num_ranks);
  const std::vector<std::int64_t> bytes(num_ranks, static_cast<std::int64_t>(part * sizeof(std::int64_t)));
  all_gather_v(world, std::as_bytes(std::span(mine)), bytes, std::as_writable_bytes(std::span(all)));

  Gathered gathered;
  gathered.chosen.assign(num_experts, 0);
  gathered.probability.assign(num_experts, 0.0);
  for (std::size_t r = 0; r < num_ranks; ++r) {
    const auto theirs = std::span(all).subspan(r * part, part);
    gathered.counts.insert(gathered.counts.end(), theirs.begin(),
                           theirs.begin() + static_cast<std::ptrdiff_t>(num_counts));
    for (std::size_t i = 0; i < num_counts; ++i) gathered.chosen[i % num_experts] += theirs[i];
    gathered.valid += theirs[num_counts];
    if (theirs[num_counts + 1] >= 0 && gathered.non_finite_rank < 0) {
      gathered.non_finite_rank = static_cast<int>(r);
      gathered.non_finite_token = theirs[num_counts + 1];
    }
    for (std::size_t e = 0; e < num_experts; ++e) {
      gathered.probability[e] += std::bit_cast<double>(theirs[num_counts + 2 + e]);
    }
  }
  return gathered;
}

at::Tensor ids_tensor(const std::vector<std::int32_t>& ids, std::int64_t num_tokens,
                      std::int64_t num_choices) {
  at::Tensor tensor = at::empty({num_tokens, num_choices}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

at::Tensor choice_weights(const GateOptions& gate, const at::Tensor& logits, const Choices& choices,
                          const RoutingPlan& plan) {
  const at::Tensor wanted = ids_tensor(choices.expert_ids, plan.num_tokens, plan.num_choices);
  const at::Tensor kept = ids_tensor(plan.expert_ids, plan.num_tokens, plan.num_choices) >= 0;
  const at::Tensor ids = wanted.clamp_min(0);
  const bool sigmoid = gate.score == ScoreKind::kSigmoid;
  if (gate.normalise == Normalise::kNone) {
    const at::Tensor scores = sigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
    return at::where(kept, scores.gather(1, ids), 0.0);
  }
  // s / sum s over a set = softmax over the set of log s; softmax(h) normalised over a set = softmax over it
  // of h.
  const at::Tensor chosen = logits.gather(1, ids);
  const at::Tensor set = gate.normalise == Normalise::kBeforeDrop ? wanted >= 0 : kept;
  const at::Tensor shares = at::softmax(at::where(set, sigmoid ? at::log_sigmoid(chosen) : chosen,
                                                  static_cast<double>(std::numeric_limits<float>::lowest())),
                                        1);
  return at::where(kept, sigmoid ? shares * gate.route_scale : shares, 0.0);
}

// What the balance loss calls p: probabilities that add up to 1 over all experts.
at::Tensor expert_probabilities(const GateOptions& gate, const at::Tensor& logits) {
  return at::softmax(gate.score == ScoreKind::kSigmoid ? at::log_sigmoid(logits) : logits, 1);
}

std::int64_t balance_groups(BalanceScope scope, std::int64_t num_tokens, std::int64_t sequence_length) {
  if (scope != BalanceScope::kSequence) return 1;
  return sequence_length == 0 ? 0 : num_tokens / sequence_length;
}

// (E/k) sum_e f_e P_e and the mean of logsumexp^2, as LayerStats wants them.
LayerStats report(const MoeConfig& moe, const Choices& choices, const RoutingPlan& plan,
                  const Gathered& gathered, double z) {
  LayerStats stats;
  stats.chosen = gathered.chosen;
  stats.dropped = plan.dropped_capacity;
  stats.non_finite = choices.non_finite_tokens;
  if (gathered.valid == 0) return stats;
  const auto tokens = static_cast<double>(gathered.valid);
  const double choices_per_token = moe.balance_convention == "hf" ? 1.0 : static_cast<double>(moe.gate.top_k);
  const double factor = static_cast<double>(moe.gate.num_experts) / choices_per_token;
  for (std::size_t e = 0; e < gathered.probability.size(); ++e) {
    const bool global = moe.balance_scope == BalanceScope::kGlobal;
    const double f = global ? static_cast<double>(gathered.chosen[e]) / tokens : 1.0;
    stats.balance_loss += factor * f * gathered.probability[e] / tokens;
  }
  stats.z_loss = z / tokens;
  return stats;
}

// Sum over this rank's tokens of the balance term, averaged over layers; division by step_tokens is left to
// do.
at::Tensor balance_sum(const ModelConfig& config, int layer, const at::Tensor& sums, const at::Tensor& shares,
                       const std::vector<double>& probability, const Gathered& gathered,
                       StepContext& context) {
  const MoeConfig& moe = config.moe;
  const std::int64_t num_moe_layers = config.num_layers - config.num_dense_layers;
  if (moe.balance_convention == "one") {
    const double factor =
        static_cast<double>(moe.gate.num_experts) / static_cast<double>(moe.gate.top_k * num_moe_layers);
    return at::sum(sums * shares) * factor;
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

}  // namespace

Routing route(const ModelConfig& config, int layer, const at::Tensor& x, const at::Tensor& router_weight,
              std::int64_t sequence_length, StepContext& context) {
  const MoeConfig& moe = config.moe;
  GateOptions gate = moe.gate;
  if (context.dropless) gate.capacity_factor = 0.0;
  const std::int64_t num_tokens = x.size(0), num_experts = gate.num_experts;
  const auto l = static_cast<std::size_t>(layer);
  require_shape("mlp.gate", router_weight, {num_experts, config.d_model});
  require(router_weight.scalar_type() == at::kFloat, "mlp.gate: expected fp32, got {}",
          c10::toString(router_weight.scalar_type()));

  at::Tensor input = x.to(at::kFloat);
  if (context.training && moe.jitter > 0.0) input = input * jitter_factors(moe.jitter, x, layer, context);
  at::Tensor logits = at::linear(input, router_weight);
  std::span<const float> bias;
  if (gate.bias_balance && l < context.bias.size()) bias = context.bias[l];
  const std::shared_ptr<const RoutingRecord> kept =
      l < context.kept_routing.size() ? context.kept_routing[l] : nullptr;
  const auto made = kept ? nullptr : std::make_shared<RoutingRecord>();
  if (made) made->choices = choose(gate, values(logits.contiguous()), bias, context.mask);
  const auto& [choices, gathered, plan] = kept ? *kept : *made;

  at::Tensor valid = ids_tensor(choices.expert_ids, num_tokens, gate.top_k).narrow(1, 0, 1) >= 0;
  if (choices.valid_tokens < num_tokens) {
    // NaN times a zero gradient is NaN: tokens without a route must leave the arithmetic altogether.
    logits = at::where(valid, at::linear(at::where(valid, input, 0.0), router_weight), 0.0);
  }
  valid = valid.to(at::kFloat);
  const std::int64_t num_groups = balance_groups(moe.balance_scope, num_tokens, sequence_length);
  const at::Tensor sums = probability_sums(expert_probabilities(gate, logits), valid, num_groups);
  const bool global = moe.balance_scope == BalanceScope::kGlobal;
  at::Tensor shares;
  if (!global) shares = chosen_shares(moe.balance_scope, choices, num_experts, num_groups, {}, 0);
  // Scopes other than global know f already: what they tell the others is f * sum p.
  const at::Tensor told = (global ? sums.detach() : sums.detach() * shares).to(at::kDouble).sum(0);
  const std::vector<double> probability(told.data_ptr<double>(), told.data_ptr<double>() + num_experts);

  if (made) {
    made->gathered = gather(*context.world, layer, choices, probability);
    if (gate.non_finite == OnNonFinite::kError && gathered.non_finite_rank >= 0) {
      throw NonFinite(fmt::format("layer {}: the router logits of token {} of rank {} are not finite", layer,
                                  gathered.non_finite_token, gathered.non_finite_rank));
    }
    const bool per_rank = gate.capacity_scope == CapacityScope::kRank;
    made->plan = admit(gate, choices, gathered.counts, per_rank ? choices.valid_tokens : gathered.valid,
                       context.world->rank(), context.world->size());
  }

  Routing routing;
  routing.plan = plan;
  routing.weights = choice_weights(gate, logits, choices, routing.plan);
  const at::Tensor weights = routing.weights.detach().contiguous();
  std::copy_n(weights.data_ptr<float>(), weights.numel(), routing.plan.weights.begin());

  const at::Tensor z = z_sum(logits, valid);
  if (made) context.stats[l] = report(moe, choices, plan, gathered, z.item<double>());
  if (made && context.keep_routing) {
    context.kept_routing.resize(context.stats.size());
    context.kept_routing[l] = made;
  }
  if (!context.training || (moe.balance_loss == 0.0 && moe.z_loss == 0.0)) return routing;

  if (global) {
    shares = chosen_shares(BalanceScope::kGlobal, choices, num_experts, 1, gathered.chosen, gathered.valid);
  }
  const at::Tensor balance = balance_sum(config, layer, sums, shares, probability, gathered, context);
  const double per_token = context.step_tokens == 0 ? 0.0 : 1.0 / static_cast<double>(context.step_tokens);
  const auto num_moe_layers = static_cast<double>(config.num_layers - config.num_dense_layers);
  routing.auxiliary =
      balance * (moe.balance_loss * per_token) + z * (moe.z_loss * per_token / num_moe_layers);
  return routing;
}

}  // namespace moesaic
