#include <ostream>

#include "moesaic/core/error.h"
#include "moesaic/nn/moe_experts.h"
#include "moesaic/nn/router.h"
#include "tests/nn/model.h"

namespace moesaic::testing {
namespace {

ModelConfig moe_config(std::int64_t num_experts, std::int64_t top_k, std::int64_t num_layers = 1) {
  ModelConfig c;
  c.num_layers = num_layers;
  c.d_model = 4;
  c.num_heads = 1;
  c.moe.d_expert = 6;
  c.moe.gate.num_experts = num_experts;
  c.moe.gate.top_k = top_k;
  c.moe.balance_loss = 1.0;
  c.moe.z_loss = 0.0;
  return c;
}

// Inputs and a router whose logits are the given rows, [T,E] with E <= 4.
struct Logits {
  at::Tensor x, weight;
  explicit Logits(const at::Tensor& rows)
      : x(at::constant_pad_nd(rows, {0, 4 - rows.size(1)}).requires_grad_()),
        weight(at::eye(4).narrow(0, 0, rows.size(1)).contiguous().requires_grad_()) {}
};

at::Tensor rows(std::vector<float> values, std::int64_t count) {
  return at::tensor(values)
      .unsqueeze(0)
      .expand({count, static_cast<std::int64_t>(values.size())})
      .contiguous();
}

TEST(Losses, TwoSaturatedLayersWithOppositeExpertsHaveAMeanBalanceLossOfTwo) {
  const ModelConfig c = moe_config(2, 1, 2);
  alone(c, 8, [&](StepContext& context) {
    const Logits a(rows({100, 0}, 8)), b(rows({0, 100}, 8));
    double sum = route(c, 0, a.x, a.weight, 8, context).auxiliary.item<double>();
    sum += route(c, 1, b.x, b.weight, 8, context).auxiliary.item<double>();
    EXPECT_NEAR(sum, 2.0, 1e-6);
    EXPECT_NEAR(context.stats[0].balance_loss, 2.0, 1e-6);
  });
}

TEST(Losses, LogitsEightAgainstThreeZerosGive3996) {
  const ModelConfig c = moe_config(4, 1);
  alone(c, 16, [&](StepContext& context) {
    const Logits l(rows({8, 0, 0, 0}, 16));
    EXPECT_NEAR(route(c, 0, l.x, l.weight, 16, context).auxiliary.item<double>(), 3.996, 5e-4);
    EXPECT_EQ(context.stats[0].chosen, (std::vector<std::int64_t>{16, 0, 0, 0}));
  });
}

TEST(Losses, ZLossIsTheMeanSquareOfLogSumExp) {
  ModelConfig c = moe_config(2, 1);
  c.moe.balance_loss = 0.0;
  c.moe.z_loss = 1.0;
  alone(c, 3, [&](StepContext& context) {
    const Logits l(rows({1, 2}, 3));
    const double expected = std::pow(std::log(std::exp(1.0) + std::exp(2.0)), 2);
    EXPECT_NEAR(route(c, 0, l.x, l.weight, 3, context).auxiliary.item<double>(), expected, 1e-5);
    EXPECT_NEAR(context.stats[0].z_loss, expected, 1e-5);
  });
}

TEST(Losses, HuggingFacesConventionConcatenatesLayersInValueAndGradient) {
  ModelConfig c = moe_config(4, 2, 2);
  c.moe.balance_convention = "hf";
  alone(c, 10, [&](StepContext& context) {
    const Logits a(normal({10, 4}, "a")), b(normal({10, 4}, "b"));
    const at::Tensor first = route(c, 0, a.x, a.weight, 10, context).auxiliary;
    const at::Tensor sum = first + route(c, 1, b.x, b.weight, 10, context).auxiliary;
    torch::autograd::backward({sum}, {});

    // transformers' load_balancing_loss_func, on the same logits.
    const at::Tensor xa = a.x.detach().clone().requires_grad_(), xb = b.x.detach().clone().requires_grad_();
    const at::Tensor p = at::softmax(at::cat({xa, xb}, 0), 1);
    const at::Tensor ids = std::get<1>(at::topk(p.detach(), 2, 1));
    const at::Tensor mask = at::one_hot(ids, 4).to(at::kFloat);  // [T,K,E]
    const at::Tensor expected = (mask.mean(0) * p.mean(0).unsqueeze(0)).sum() * 4;
    torch::autograd::backward({expected}, {});
    EXPECT_NEAR(sum.item<double>(), expected.item<double>(), 1e-5);
    expect_close(a.x.grad(), xa.grad(), 1e-5, "layer 0");
    expect_close(b.x.grad(), xb.grad(), 1e-5, "layer 1");
  });
}

// ---- scopes of the balance loss ----

// Three sequences of 4 positions on two ranks; 4, 2 and 3 of them are tokens, the rest is padding.
constexpr std::int64_t kPositions = 4, kTokens = 9;
// The step has another micro-step of 6 tokens.
constexpr std::int64_t kStepTokens = kTokens + 6;
const std::vector<std::vector<std::uint8_t>> kMasks{{1, 1, 1, 1, 1, 1, 0, 0}, {1, 1, 1, 0}};

struct ScopeCase {
  const char* name;
  BalanceScope scope;
  const char* gate;
  ScoreKind score = ScoreKind::kSoftmax;
  bool training = true;
};

void PrintTo(const ScopeCase& scope_case, std::ostream* out) { *out << scope_case.name; }

class BalanceScopes : public ::testing::TestWithParam<ScopeCase> {
 protected:
  ModelConfig config() const {
    ModelConfig c = moe_config(4, std::string(GetParam().gate) == "dense_to_sparse" ? 1 : 2);
    c.moe.gate.name = GetParam().gate;
    c.moe.gate.score = GetParam().score;
    if (c.moe.gate.name == "dense_to_sparse") c.moe.gate.threshold = 0.25;
    c.moe.balance_scope = GetParam().scope;
    return c;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Gates, BalanceScopes,
    ::testing::Values(ScopeCase{"rank_top_k", BalanceScope::kRank, "top_k"},
                      ScopeCase{"sequence_top_k", BalanceScope::kSequence, "top_k"},
                      ScopeCase{"rank_sigmoid", BalanceScope::kRank, "top_k", ScoreKind::kSigmoid},
                      ScopeCase{"sequence_sigmoid", BalanceScope::kSequence, "top_k", ScoreKind::kSigmoid},
                      ScopeCase{"rank_gshard", BalanceScope::kRank, "gshard"},
                      ScopeCase{"sequence_gshard", BalanceScope::kSequence, "gshard"},
                      // Without its noise.
                      ScopeCase{"rank_dense_to_sparse", BalanceScope::kRank, "dense_to_sparse",
                                ScoreKind::kSoftmax, false},
                      ScopeCase{"sequence_dense_to_sparse", BalanceScope::kSequence, "dense_to_sparse",
                                ScoreKind::kSoftmax, false}),
    [](const auto& info) { return info.param.name; });

// factor * sum_e f_e P_e of tokens h [t,E], fp64.
at::Tensor plain_balance(const ModelConfig& c, const at::Tensor& h) {
  if (c.moe.gate.name == "dense_to_sparse") {
    const at::Tensor q = at::softmax(h / c.moe.gate.first_temperature, 1), kept = q * (q > 0.25);
    return (kept.sum(0) / kept.sum() * kept.mean(0)).sum() * 4.0;
  }
  const at::Tensor s = at::sigmoid(h);
  const at::Tensor p = c.moe.gate.score == ScoreKind::kSigmoid ? s / s.sum(1, true) : at::softmax(h, 1);
  const std::int64_t counted = c.moe.gate.name == "gshard" ? 1 : 2;
  const at::Tensor ids = std::get<1>(at::topk(h.detach(), counted, 1));
  const at::Tensor f = at::one_hot(ids, 4).to(at::kDouble).sum(1).mean(0);
  return (f * p.mean(0)).sum() * (4.0 / static_cast<double>(counted));
}

TEST_P(BalanceScopes, WeighEachRankOrSequenceByItsShareOfTheStepsTokens) {
  const ModelConfig c = config();
  const std::vector<at::Tensor> values{normal({8, 4}, "rank 0"), normal({4, 4}, "rank 1")};
  std::vector<at::Tensor> gradients(2);
  std::vector<double> auxiliary(2), stats(2);
  run_world(Topology::one_node(2), [&](Communicator& world) {
    at::set_num_threads(1);
    const auto r = static_cast<std::size_t>(world.rank());
    StepContext context;
    context.training = GetParam().training;
    context.step_tokens = context.step_targets = kStepTokens;
    context.world = &world;
    context.stats.resize(1);
    context.mask = kMasks[r];
    const Logits l(values[r]);
    const at::Tensor loss = route(c, 0, l.x, l.weight, kPositions, context).auxiliary;
    stats[r] = context.stats[0].balance_loss;
    if (!context.training) return;
    torch::autograd::backward({loss}, {});
    auxiliary[r] = loss.item<double>();
    gradients[r] = l.x.grad();
  });

  // L of each group of tokens times its number of tokens.
  std::vector<at::Tensor> h;
  at::Tensor expected = at::zeros({}, at::kDouble);
  for (std::size_t r = 0; r < 2; ++r) {
    h.push_back(values[r].to(at::kDouble).requires_grad_());
    const std::int64_t positions = values[r].size(0);
    const std::int64_t group = GetParam().scope == BalanceScope::kRank ? positions : kPositions;
    for (std::int64_t begin = 0; begin < positions; begin += group) {
      std::vector<std::int64_t> rows;
      for (std::int64_t t = begin; t < begin + group; ++t) {
        if (kMasks[r][static_cast<std::size_t>(t)]) rows.push_back(t);
      }
      const at::Tensor loss = plain_balance(c, h[r].index_select(0, at::tensor(rows, at::kLong)));
      expected = expected + loss * static_cast<double>(rows.size());
    }
  }
  // Reported: the mean of this micro-step, on every rank.
  EXPECT_NEAR(stats[0], expected.item<double>() / kTokens, 1e-6);
  EXPECT_EQ(stats[1], stats[0]);
  if (!GetParam().training) return;
  expected = expected / static_cast<double>(kStepTokens);
  torch::autograd::backward({expected}, {});
  EXPECT_NEAR(auxiliary[0] + auxiliary[1], expected.item<double>(), 1e-6);
  for (std::size_t r = 0; r < 2; ++r) expect_close(gradients[r], h[r].grad(), 1e-5, "logits");
}

TEST(Router, LogitsThatBf16WouldTieChooseTheLargestWhateverTheModelsDtype) {
  const ModelConfig c = moe_config(3, 1);
  alone(c, 1, [&](StepContext& context) {
    const at::Tensor x = at::tensor({1.0f, 0.0f, 0.0f, 0.0f}).unsqueeze(0).to(at::kBFloat16);
    const at::Tensor router = at::constant_pad_nd(at::tensor({1.0f, 1.001f, 1.002f}).unsqueeze(1), {0, 3});
    const Routing routing = route(c, 0, x, router, 1, context);
    EXPECT_EQ(routing.plan.expert_ids, (std::vector<std::int32_t>{2}));
    EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
    EXPECT_FLOAT_EQ(routing.weights[0][0].item<float>(),
                    1.0f / (1.0f + std::exp(-0.001f) + std::exp(-0.002f)));
  });
}

TEST(Router, WeightsFollowTheOracleForEveryScoreAndNormalisationWithDrops) {
  for (const ScoreKind score : {ScoreKind::kSoftmax, ScoreKind::kSigmoid}) {
    for (const Normalise normalise : {Normalise::kNone, Normalise::kBeforeDrop, Normalise::kAfterDrop}) {
      ModelConfig c = moe_config(4, 2);
      c.moe.gate.score = score;
      c.moe.gate.normalise = normalise;
      c.moe.gate.capacity_factor = 0.7;
      if (score == ScoreKind::kSigmoid && normalise != Normalise::kNone) c.moe.gate.route_scale = 2.5;
      alone(c, 12, [&](StepContext& context) {
        const Logits l(normal({12, 4}, "logits"));
        const Routing routing = route(c, 0, l.x, l.weight, 12, context);
        const std::span<const float> logits(l.x.data_ptr<float>(), 48);
        const Choices choices = choose(c.moe.gate, {.logits = logits});
        RoutingPlan plan = admit(c.moe.gate, choices, choices.counts, 12, 0, 1);
        weigh(c.moe.gate, logits, choices, plan);
        ASSERT_GT(plan.dropped_capacity, 0);
        EXPECT_EQ(routing.plan.expert_ids, plan.expert_ids);
        expect_close(routing.weights.detach().view(-1), at::tensor(plan.weights), 1e-6, "weights");
        EXPECT_EQ(routing.plan.weights.size(), plan.weights.size());
      });
    }
  }
}

TEST(Router, FourSigmoidScoresOf1eMinus22StillAddUpToOne) {
  ModelConfig c = moe_config(4, 4);
  c.moe.gate.score = ScoreKind::kSigmoid;
  c.moe.gate.normalise = Normalise::kBeforeDrop;
  alone(c, 2, [&](StepContext& context) {
    const float h = std::log(1e-22f);
    const Logits l(rows({h, h, h, h}, 2));
    const Routing routing = route(c, 0, l.x, l.weight, 2, context);
    EXPECT_NEAR(routing.weights.sum().item<double>(), 2.0, 1e-6);
    torch::autograd::backward({routing.weights.sum() + routing.auxiliary}, {});
    EXPECT_TRUE(at::isfinite(l.x.grad()).all().item<bool>());
  });
}

TEST(Router, BiasMovesSelectionButNotWeights) {
  ModelConfig c = moe_config(4, 1);
  c.moe.gate.score = ScoreKind::kSigmoid;
  c.moe.gate.bias_balance = true;
  alone(c, 2, [&](StepContext& context) {
    context.gate_state = {{0.0f, 0.0f, 0.0f, 1.0f}};
    const Logits l(rows({1, 0, 0, 0}, 2));
    const Routing routing = route(c, 0, l.x, l.weight, 2, context);
    EXPECT_EQ(routing.plan.expert_ids, (std::vector<std::int32_t>{3, 3}));
    EXPECT_NEAR(routing.weights.detach()[0][0].item<float>(), 0.5f, 1e-6);
  });
}

TEST(Router, ADroppedNonFiniteTokenGetsNoExpertAndPassesNoGradient) {
  ModelConfig c = moe_config(4, 2);
  c.moe.z_loss = 0.1;
  c.moe.gate.non_finite = OnNonFinite::kDrop;
  alone(c, 3, [&](StepContext& context) {
    at::Tensor values = normal({3, 4}, "x");
    values[1].fill_(INFINITY);
    const Logits l(values);
    const Routing routing = route(c, 0, l.x, l.weight, 3, context);
    EXPECT_EQ(context.stats[0].non_finite, 1);
    EXPECT_EQ(routing.plan.expert_ids[2], -1);
    EXPECT_EQ(routing.plan.weights[2], 0.0f);
    torch::autograd::backward({routing.weights.sum() + routing.auxiliary}, {});
    EXPECT_TRUE(at::isfinite(l.weight.grad()).all().item<bool>());
    EXPECT_EQ(l.x.grad()[1].abs().max().item<float>(), 0.0f);
  });
}

// A fixed plan over 3 experts, width 4, one choice missing.
struct Experts {
  RoutingPlan plan;
  at::Tensor x = normal({3, 4}, "x"), weights = normal({3, 2}, "w").abs(),
             w_in = normal({3, 12, 4}, "in", 0.5), w_out = normal({3, 4, 6}, "out", 0.5),
             g = normal({3, 4}, "g");
  Experts() {
    plan.num_tokens = 3;
    plan.num_choices = 2;
    plan.num_experts = 3;
    plan.expert_ids = {0, 2, 2, 0, 2, -1};
    plan.weights.assign(6, 0.0f);
    plan.kept = {2, 0, 3};
    weights[2][1] = 0.0;
    for (at::Tensor* t : {&x, &weights, &w_in, &w_out}) t->requires_grad_();
  }
  at::Tensor operator()(StepContext& context, const at::Tensor& input) const {
    return moe_experts(context.routes[0], Activation::kSwiGlu, plan, input, weights, w_in, w_out);
  }
};

TEST(Experts, GradientsAgreeWithFiniteDifferences) {
  alone(moe_config(3, 2), 3, [](StepContext& context) {
    Experts experts;
    torch::autograd::backward({experts(context, experts.x)}, {experts.g});
    const auto value = [&] {
      const at::NoGradGuard no_grad;
      return (experts(context, experts.x) * experts.g).to(at::kDouble).sum().item<double>();
    };
    for (at::Tensor* t : {&experts.x, &experts.weights, &experts.w_in, &experts.w_out}) {
      at::Tensor difference = at::zeros_like(*t);
      for (std::int64_t i = 0; i < t->numel(); ++i) {
        float& element = t->data_ptr<float>()[i];
        const float kept = element, step = 1e-2f;
        element = kept + step;
        const double above = value();
        element = kept - step;
        const double below = value();
        element = kept;
        difference.data_ptr<float>()[i] = static_cast<float>((above - below) / (2.0 * step));
      }
      if (t == &experts.weights) difference[2][1] = 0.0;  // the absent choice
      expect_close(t->grad(), difference, 2e-3, "gradient");
    }
    EXPECT_EQ(experts.w_in.grad()[1].abs().max().item<float>(), 0.0f);
  });
}

TEST(Experts, TwoForwardsBeforeOneBackwardKeepTheirOwnRoutes) {
  alone(moe_config(3, 2), 3, [](StepContext& context) {
    Experts experts, other;
    other.plan.expert_ids = {1, 2, 0, 1, 1, -1};
    other.plan.kept = {1, 3, 1};
    const auto run = [&](bool together) {
      for (at::Tensor* t : {&experts.x, &other.x}) t->mutable_grad().reset();
      const at::Tensor first = experts(context, experts.x);
      if (!together) torch::autograd::backward({first}, {experts.g});
      const at::Tensor second = other(context, other.x);
      if (!together) torch::autograd::backward({second}, {other.g});
      if (together) torch::autograd::backward({first, second}, {experts.g, other.g});
      return std::vector<at::Tensor>{experts.x.grad().clone(), other.x.grad().clone()};
    };
    const auto apart = run(false), together = run(true);
    EXPECT_TRUE(at::equal(apart[0], together[0]));
    EXPECT_TRUE(at::equal(apart[1], together[1]));
  });
}

TEST(Experts, RefusesWeightsOfAnotherShapeOrDtype) {
  alone(moe_config(3, 2), 3, [](StepContext& context) {
    Experts experts;
    experts.w_in = normal({3, 6, 4}, "relu sized");
    EXPECT_THROW(experts(context, experts.x), InvalidArgument);
    EXPECT_THROW(Experts()(context, experts.x.to(at::kBFloat16)), InvalidArgument);
  });
}

}  // namespace
}  // namespace moesaic::testing
