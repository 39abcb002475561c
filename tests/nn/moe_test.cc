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

// Runs `body` as the only rank of a world, with a context for a step of `num_tokens`.
void alone(const ModelConfig& config, std::int64_t num_tokens,
           const std::function<void(StepContext&)>& body) {
  run_world(Topology::one_node(1), [&](Communicator& world) {
    at::set_num_threads(1);
    const auto placement = Placement::contiguous(static_cast<int>(config.moe.gate.num_experts), 1, 1);
    StepContext context;
    context.step_tokens = context.step_targets = num_tokens;
    context.world = &world;
    context.routes.assign(static_cast<std::size_t>(config.num_layers), {&world, &placement});
    context.stats.resize(static_cast<std::size_t>(config.num_layers));
    body(context);
  });
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

TEST(Experts, StridedInputsAreReadAsWhatTheyMean) {
  alone(moe_config(3, 2), 3, [](StepContext& context) {
    const Experts experts;
    const at::Tensor strided = experts.x.detach().t().contiguous().t();
    ASSERT_FALSE(strided.is_contiguous());
    EXPECT_TRUE(at::equal(experts(context, strided), experts(context, experts.x)));
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
