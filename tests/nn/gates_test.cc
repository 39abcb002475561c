// Every gate in the model: weights and losses against plain formulas that autograd differentiates, and the
// same step on any number of ranks.
#include "tests/routing/gates.h"
#include "moesaic/core/error.h"
#include "moesaic/nn/router.h"
#include "moesaic/routing/gate_form.h"
#include "tests/nn/model.h"

namespace moesaic::testing {
namespace {

constexpr std::int64_t kExperts = 8;

// Gates, and gates with options that change their formulas.
const std::vector<std::string> kVariants{"gshard_random_second", "top_k_sigmoid"};

std::vector<std::string> with_variants(std::vector<std::string> names) {
  names.insert(names.end(), kVariants.begin(), kVariants.end());
  return names;
}

std::string gate_of(const std::string& variant) {
  if (variant == "gshard_random_second") return "gshard";
  return variant == "top_k_sigmoid" ? "top_k" : variant;
}

ModelConfig config_for(const std::string& variant) {
  const std::string gate = gate_of(variant);
  ModelConfig c;
  c.vocab_size = 13;
  c.num_layers = 1;
  c.d_model = 16;
  c.num_heads = 2;
  c.max_seq_len = 8;
  c.init_std = 0.3;
  c.moe.d_expert = 12;
  c.moe.balance_loss = 0.5;
  c.moe.z_loss = 0.1;
  GateOptions& options = c.moe.gate;
  options.name = gate;
  options.num_experts = kExperts;
  options.top_k = gate_named(gate).top_k == 0 ? 2 : gate_named(gate).top_k;
  if (gate == "sam") options.num_groups = 2;
  if (gate == "expert_choice") options.capacity_factor = 1.0;
  if (gate == "sam") options.alignment_loss = 0.7;
  if (gate == "dense_to_sparse") options.threshold = 0.1;
  options.random_second = variant == "gshard_random_second";
  if (variant == "top_k_sigmoid") {  // DeepSeek-V3's
    options.score = ScoreKind::kSigmoid;
    options.normalise = Normalise::kBeforeDrop;
    options.route_scale = 2.5;
    options.bias_balance = true;
  }
  return c;
}

// A bias as if balancing had been at work.
GateStates states_for(const ModelConfig& c) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(c.vocab_size), 1);
  GateStates states = first_gate_states(c, 5, counts);
  if (c.moe.gate.bias_balance) states.layers[0] = {0.3f, -0.2f, 0, 0.1f, -0.4f, 0.2f, 0, -0.1f};
  return states;
}

class GateInModel : public ::testing::TestWithParam<std::string> {
 protected:
  ModelConfig config_ = config_for(GetParam());
  const Gate& gate_ = gate_named(gate_of(GetParam()));
};

INSTANTIATE_TEST_SUITE_P(Gates, GateInModel, ::testing::ValuesIn(with_variants(gate_names())),
                         [](const auto& info) { return info.param; });

// ---- one layer's router, in training ----

struct Routed {
  Routing routing;
  std::vector<float> noise;
  double temperature = 1.0;
};

Routed run_router(const ModelConfig& c, const at::Tensor& x, const at::Tensor& router) {
  Routed routed;
  run_world(Topology::one_node(1), [&](Communicator& world) {
    at::set_num_threads(1);
    StepContext context;
    context.seed = 5;
    context.step = 300;
    context.step_tokens = context.step_targets = x.size(0);
    context.world = &world;
    context.stats.resize(1);
    context.gate_state = states_for(c).layers;
    for (std::int64_t t = 0; t < x.size(0); ++t) context.token_ids.push_back(t % c.vocab_size);
    routed.routing = route(c, 0, x, router, x.size(0), context);
    const Gate& gate = gate_named(c.moe.gate.name);
    routed.noise.assign(static_cast<std::size_t>(x.size(0) * kExperts), 0.0f);
    if (gate.noise) gate.noise(c.moe.gate, {.logits = {}, .seed = 5, .lane = 300}, routed.noise);
    if (gate.temperature) routed.temperature = gate.temperature(c.moe.gate, 300);
  });
  return routed;
}

// The same in fp64 from the chosen ids: weights times g, and the losses.
at::Tensor plain_sum(const ModelConfig& c, const Routed& routed, const at::Tensor& x,
                     const at::Tensor& router, const at::Tensor& g) {
  const std::string& name = c.moe.gate.name;
  const RoutingPlan& plan = routed.routing.plan;
  const std::int64_t tokens = plan.num_tokens, k = plan.num_choices;
  const auto experts = static_cast<double>(kExperts), top_k = static_cast<double>(c.moe.gate.top_k);
  const at::Tensor ids = at::tensor(plan.expert_ids, at::kLong).view({tokens, k}), kept = ids >= 0;
  const at::Tensor chosen = at::zeros({tokens, kExperts + 1}, at::kDouble)
                                .scatter_(1, at::where(kept, ids, kExperts), 1.0)
                                .narrow(1, 0, kExperts);
  if (name == "hash") return (kept * g).sum().to(at::kDouble);

  const at::Tensor raw = at::matmul(x, router.t());
  const at::Tensor h =
      (raw + at::tensor(routed.noise, at::kDouble).view({tokens, kExperts})) / routed.temperature;
  const bool sigmoids = c.moe.gate.score == ScoreKind::kSigmoid;
  const at::Tensor s = at::sigmoid(h);
  const at::Tensor p = name == "k_top_1" ? at::softmax(h.view({tokens, 2, kExperts / 2}), 2).view(h.sizes())
                       : sigmoids        ? s / s.sum(1, true)
                                         : at::softmax(h, 1);
  const at::Tensor scores = name == "base" || sigmoids ? s : p;
  at::Tensor weights = scores.gather(1, ids.clamp_min(0));
  // Of the two best, whether or not the second is left out.
  if (name == "gshard") weights = weights / std::get<0>(at::topk(p, 2, 1)).sum(1, true);
  if (sigmoids) weights = weights / weights.sum(1, true) * c.moe.gate.route_scale;
  at::Tensor sum = (at::where(kept, weights, 0.0) * g).sum();
  if (name == "base" || name == "expert_choice") return sum;

  at::Tensor f = chosen, mean = p.mean(0);
  double factor = experts / top_k;
  if (name == "gshard") {
    f = at::one_hot(ids.select(1, 0), kExperts).to(at::kDouble);
    factor = experts;
  } else if (name == "k_top_1") {
    factor = experts / (top_k * top_k);
  } else if (name == "dense_to_sparse") {
    const at::Tensor mass = p * chosen;
    mean = mass.mean(0);
    f = (mass.sum(0) / mass.sum()).detach().unsqueeze(0);
  }
  sum = sum + (f.mean(0) * mean).sum() * (factor * c.moe.balance_loss);
  sum = sum + at::logsumexp(raw, 1).square().mean() * c.moe.z_loss;
  if (name == "sam") {
    const at::Tensor last = p.gather(1, ids.narrow(1, k - 1, 1));
    const at::Tensor group = at::floor_divide(ids.narrow(1, 0, 1), kExperts / 2);
    const at::Tensor outside = at::floor_divide(at::arange(kExperts), kExperts / 2).unsqueeze(0) != group;
    sum = sum + (at::relu(p - last) * outside).sum(1).mean() * c.moe.gate.alignment_loss;
  }
  return sum;
}

TEST_P(GateInModel, WeightsLossesAndGradientsEqualThePlainFormula) {
  const at::Tensor x = normal({24, 16}, "x").requires_grad_();
  const at::Tensor router =
      gate_.has_router ? normal({kExperts, 16}, "router", 0.3).requires_grad_() : at::Tensor();
  const Routed routed = run_router(config_, x, router);
  if (config_.moe.gate.random_second) {
    EXPECT_GT(routed.routing.plan.dropped_random, 0);
    EXPECT_LT(routed.routing.plan.dropped_random, 24);
  }
  const at::Tensor g = normal({24, routed.routing.plan.num_choices}, "g");
  at::Tensor sum = (routed.routing.weights * g).sum();
  if (routed.routing.auxiliary.defined()) sum = sum + routed.routing.auxiliary;

  const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor router64 =
      gate_.has_router ? router.detach().to(at::kDouble).requires_grad_() : at::Tensor();
  const at::Tensor expected = plain_sum(config_, routed, x64, router64, g);
  EXPECT_NEAR(sum.item<double>(), expected.item<double>(), 1e-5);
  EXPECT_EQ(gate_.has_router, sum.requires_grad());
  if (!gate_.has_router) return;
  torch::autograd::backward({sum}, {});
  torch::autograd::backward({expected}, {});
  expect_close(x.grad(), x64.grad(), 2e-5, "x");
  expect_close(router.grad(), router64.grad(), 2e-5, "router");
}

TEST(SigmoidGate, ChoosesByBiasedScoresInTheModel) {
  const ModelConfig c = config_for("top_k_sigmoid");
  const at::Tensor x = normal({24, 16}, "x"), router = normal({kExperts, 16}, "router", 0.3);
  const Routed routed = run_router(c, x, router);
  const at::Tensor s = at::sigmoid(at::matmul(x, router.t()));
  const auto best = [](const at::Tensor& scores) { return std::get<1>(at::topk(scores, 2, 1)); };
  const at::Tensor ids = at::tensor(routed.routing.plan.expert_ids, at::kLong).view({24, 2});
  EXPECT_TRUE(at::equal(ids, best(s + at::tensor(states_for(c).layers[0]))));
  EXPECT_FALSE(at::equal(ids, best(s)));
}

// ---- the whole model ----

const std::vector<std::vector<std::int64_t>> kSplits{{2, 4}, {3, 0, 3}, {1, 2, 0, 3}};

class GateOfAnyLayout : public GateInModel {};
INSTANTIATE_TEST_SUITE_P(Gates, GateOfAnyLayout, ::testing::ValuesIn(with_variants(gates_where(any_layout))),
                         [](const auto& info) { return info.param; });
class GateWithPriority : public GateInModel {};
INSTANTIATE_TEST_SUITE_P(Gates, GateWithPriority, ::testing::ValuesIn(gates_where(takes_priority)),
                         [](const auto& info) { return info.param; });
class GateWithLogits : public GateInModel {};
INSTANTIATE_TEST_SUITE_P(Gates, GateWithLogits, ::testing::ValuesIn(gates_where(has_router)),
                         [](const auto& info) { return info.param; });

TEST_P(GateOfAnyLayout, TheSameStepOnOneToFourRanks) {
  if (gate_.capacity == Gate::Capacity::kOptional) config_.moe.gate.capacity_factor = 0.8;
  const Batch batch = batch_of(config_, 6, 4);
  const Pass one = run_ranks(config_, batch, {6});
  EXPECT_EQ(one.stats[0].dropped > 0, gate_.capacity == Gate::Capacity::kOptional);
  EXPECT_EQ(one.stats[0].dropped_random > 0, config_.moe.gate.random_second);
  for (const auto& split : kSplits) {
    SCOPED_TRACE(fmt::format("{} ranks", split.size()));
    const Pass pass = run_ranks(config_, batch, split);
    expect_same_step(pass, one);
    EXPECT_EQ(pass.stats[0].chosen, one.stats[0].chosen);
    EXPECT_EQ(pass.stats[0].dropped, one.stats[0].dropped);
    EXPECT_EQ(pass.stats[0].dropped_random, one.stats[0].dropped_random);
  }
}

TEST_P(GateWithPriority, IsTheSameOnOneToFourRanks) {
  config_.moe.gate.capacity_factor = 0.8;
  const Batch batch = batch_of(config_, 6, 4);
  const Pass by_order = run_ranks(config_, batch, {6});
  config_.moe.gate.priority = Priority::kScore;
  const Pass one = run_ranks(config_, batch, {6});
  EXPECT_NE(one.loss, by_order.loss);
  for (const auto& split : kSplits) expect_same_step(run_ranks(config_, batch, split), one);
}

TEST_P(GateInModel, RightPaddingChangesNothing) {
  const Batch plain = batch_of(config_, 4, 5);
  Batch padded;
  padded.ids = at::cat({plain.ids, at::zeros({4, 3}, at::kLong)}, 1);
  padded.targets = at::cat({plain.targets, at::full({4, 3}, -1, at::kLong)}, 1);
  for (int t = 0; t < 32; ++t) padded.mask.push_back(t % 8 < 5);
  // Random choices and shuffles go by token, and padding moves tokens: there, evaluation.
  PassOptions options;
  options.training = !gate_.noise && GetParam() != "base" && !config_.moe.gate.random_second;
  const Pass expected = run_ranks(config_, plain, {4}, options),
             pass = run_ranks(config_, padded, {4}, options);
  EXPECT_EQ(expected.gradients.empty(), !options.training);
  expect_same_step(pass, expected);
  EXPECT_EQ(pass.stats[0].chosen, expected.stats[0].chosen);
  EXPECT_GT(expected.stats[0].chosen[0], 0);
  EXPECT_NEAR(pass.stats[0].balance_loss, expected.stats[0].balance_loss, 1e-6);
  EXPECT_NEAR(pass.stats[0].z_loss, expected.stats[0].z_loss, 1e-5);
  EXPECT_NEAR(pass.stats[0].gate_loss, expected.stats[0].gate_loss, 1e-6);
}

TEST_P(GateWithLogits, ADroppedNonFiniteTokenLeavesTheOthersAndTheGradientsFinite) {
  config_.moe.gate.non_finite = OnNonFinite::kDrop;
  at::Tensor x = normal({24, 16}, "x");
  x[7].fill_(INFINITY);
  x.requires_grad_();
  const at::Tensor router = normal({kExperts, 16}, "router", 0.3).requires_grad_();
  const Routed routed = run_router(config_, x, router);
  const RoutingPlan& plan = routed.routing.plan;
  for (std::int64_t k = 0; k < plan.num_choices; ++k) {
    EXPECT_EQ(plan.expert_ids[static_cast<std::size_t>(7 * plan.num_choices + k)], -1);
  }
  at::Tensor sum = routed.routing.weights.sum();
  if (routed.routing.auxiliary.defined()) sum = sum + routed.routing.auxiliary;
  torch::autograd::backward({sum}, {});
  EXPECT_TRUE(at::isfinite(router.grad()).all().item<bool>());
  EXPECT_EQ(x.grad()[7].abs().max().item<float>(), 0.0f);
}

TEST(BaseGate, EveryRankSharesOutItsHandEvenlyAndTheRunRepeats) {
  const ModelConfig c = config_for("base");
  const Batch batch = batch_of(c, 8, 4);
  for (const auto& split : {std::vector<std::int64_t>{8}, {4, 4}, {1, 0, 7}}) {
    const Pass pass = run_ranks(c, batch, split);
    // Hands differ by a token at most, and so do the experts of a hand.
    for (const std::int64_t count : pass.stats[0].chosen) EXPECT_NEAR(static_cast<double>(count), 4.0, 2.0);
    EXPECT_EQ(run_ranks(c, batch, split).loss, pass.loss);
  }
  const Pass even = run_ranks(c, batch, {4, 4});
  EXPECT_EQ(even.stats[0].chosen, std::vector<std::int64_t>(8, 4));
}

TEST(LayersWithTheirOwnGates, GiveTheSameStepOnAnyNumberOfRanks) {
  ModelConfig c = config_for("top_k");
  c.num_layers = 4;
  const auto own = [&](std::int64_t layer, const std::string& gate) {
    c.own_moe[layer] = config_for(gate).moe;
  };
  own(0, "hash");
  own(1, "switch");
  own(3, "expert_choice");
  const Batch batch = batch_of(c, 6, 4);
  const Pass one = run_ranks(c, batch, {6});
  EXPECT_EQ(one.gradients.count("layers.0.router 0"), 0u);
  EXPECT_EQ(one.gradients.count("layers.1.router 0"), 1u);
  for (const auto& split : kSplits) expect_same_step(run_ranks(c, batch, split), one);
}

TEST(LayersWithTheirOwnGates, WhatAllLayersShareMayNotDiffer) {
  ModelConfig c = config_for("top_k");
  c.own_moe[0] = config_for("gshard").moe;
  EXPECT_NO_THROW(validate(c));
  c.own_moe[0].gate.num_experts = 4;
  EXPECT_THROW(validate(c), InvalidArgument);
  c.own_moe = {{1, c.moe}};  // one layer only
  EXPECT_THROW(validate(c), InvalidArgument);
}

}  // namespace
}  // namespace moesaic::testing
