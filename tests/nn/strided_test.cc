// Every operation on tensors gives for strided ones what it gives for contiguous ones, forward and backward,
// or refuses them.
#include <ostream>

#include "moesaic/core/error.h"
#include "moesaic/nn/attention.h"
#include "moesaic/nn/balance.h"
#include "moesaic/nn/embedding.h"
#include "moesaic/nn/expert_products.h"
#include "moesaic/nn/feed_forward.h"
#include "moesaic/nn/gate_formulas.h"
#include "moesaic/nn/kv_cache.h"
#include "moesaic/nn/moe_experts.h"
#include "moesaic/nn/products.h"
#include "moesaic/nn/router.h"
#include "moesaic/nn/router_product.h"
#include "moesaic/nn/softmax_choice.h"
#include "tests/nn/model.h"

namespace moesaic::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kSequences = 2, kPositions = 4, kTokens = 8, kWidth = 8, kExperts = 4, kChoices = 2;

struct Operation {
  std::string name;
  ModelConfig config;
  Tensors inputs;
  std::function<Tensors(const Tensors&, StepContext&)> run;
  bool refuses = false;  // throws InvalidArgument for any strided input
};

void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

// ---- layouts of the same values ----

// Rows lie across memory; of a vector, every second element.
at::Tensor transposed(const at::Tensor& t) {
  if (t.dim() < 2) return at::stack({t, t}, 1).select(1, 0);
  return t.transpose(0, -1).contiguous().transpose(0, -1);
}

// Between two elements lies one that does not belong.
at::Tensor spaced(const at::Tensor& t) { return at::stack({t, at::full_like(t, 5)}, -1).select(-1, 0); }

using Layout = at::Tensor (*)(const at::Tensor&);

// ---- what comes out, and the gradients of what went in ----

Tensors outcome(const Operation& operation, const Tensors& inputs, Layout of_gradients = nullptr) {
  Tensors found;
  alone(operation.config, kTokens, [&](StepContext& context) {
    context.seed = 5;
    Tensors leaves;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.detach());  // keeps strides
      leaves.back().requires_grad_(input.is_floating_point());
    }
    Tensors roots, gradients;
    for (const at::Tensor& output : operation.run(leaves, context)) {
      if (!output.defined()) continue;
      found.push_back(output.detach());
      if (!output.requires_grad()) continue;
      const at::Tensor g = normal(output.sizes(), "g").to(output.scalar_type());
      roots.push_back(output);
      gradients.push_back(of_gradients && g.dim() > 0 ? of_gradients(g) : g);
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    for (const at::Tensor& leaf : leaves) {
      if (leaf.grad().defined()) found.push_back(leaf.grad());
    }
  });
  return found;
}

void expect_equal(const Tensors& got, const Tensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double tolerance = expected[i].scalar_type() == at::kBFloat16 ? 2e-2 : 1e-5;
    expect_close(got[i], expected[i].to(at::kDouble), tolerance, fmt::format("output or gradient {}", i));
  }
}

// ---- the operations ----

ModelConfig small_model() {
  ModelConfig c;
  c.vocab_size = 9;
  c.num_layers = 1;
  c.d_model = kWidth;
  c.num_heads = 2;
  c.max_seq_len = kPositions;
  c.init_std = 0.4;
  c.moe.d_expert = 6;
  c.moe.balance_loss = c.moe.z_loss = 0.5;
  c.moe.gate.num_experts = kExperts;
  c.moe.gate.top_k = kChoices;
  return c;
}

// [T,K] all of them kept, every expert chosen.
RoutingPlan some_plan() {
  RoutingPlan plan;
  plan.num_tokens = kTokens;
  plan.num_choices = kChoices;
  plan.num_experts = kExperts;
  plan.kept.assign(kExperts, 0);
  for (std::int32_t t = 0; t < kTokens; ++t) {
    for (const std::int32_t e : {t % 4, (t + 1 + t / 4) % 4}) {
      plan.expert_ids.push_back(e);
      ++plan.kept[static_cast<std::size_t>(e)];
    }
  }
  plan.weights.assign(plan.expert_ids.size(), 0.5f);
  return plan;
}

Choices choices_of(const GateOptions& options, const at::Tensor& logits) {
  const at::Tensor rows = logits.detach().contiguous();
  return choose(options, {.logits = {rows.const_data_ptr<float>(), static_cast<std::size_t>(rows.numel())}});
}

void append(std::vector<Operation>& all, std::string name, Tensors inputs,
            std::function<Tensors(const Tensors&)> run, bool refuses = false) {
  all.push_back({std::move(name), small_model(), std::move(inputs),
                 [run = std::move(run)](const Tensors& in, StepContext&) { return run(in); }, refuses});
}

void append_blocks(std::vector<Operation>& all) {
  const ModelConfig c = small_model();
  const at::Tensor x = normal({kSequences, kPositions, kWidth}, "x"),
                   rows = normal({kTokens, kWidth}, "rows");
  const at::Tensor heads = normal({kSequences, 2, kPositions, 4}, "heads");
  append(all, "rms_norm", {x, normal({kWidth}, "w")},
         [](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; });
  append(all, "rotary", {heads, at::arange(kPositions)},
         [](const Tensors& in) { return Tensors{rotary(in[0], rotation(in[1], 4, 100.0))}; });
  append(all, "attend", {heads, heads * 0.5, heads + 1.0},
         [](const Tensors& in) { return Tensors{attend(in[0], in[1], in[2], {}, /*causal=*/true)}; });
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::string suffix = type == at::kFloat ? "" : "_bf16";
    append(all, "project" + suffix, {x.to(type), normal({5, kWidth}, "w").to(type)},
           [](const Tensors& in) { return Tensors{project(in[0], in[1])}; });
    append(all, "multiply_into" + suffix, {rows.to(type), normal({kWidth, 5}, "w").to(type)},
           [](const Tensors& in) {
             const at::NoGradGuard no_grad;
             at::Tensor out = at::empty({kTokens, 5}, in[0].options());
             multiply_into(out, in[0], in[1]);
             return Tensors{out};
           });
    append(all, "cross_entropy" + suffix,
           {rows.to(type), normal({9, kWidth}, "w").to(type), token_ids(1, kTokens, 9).view(-1)},
           [](const Tensors& in) { return Tensors{cross_entropy(in[0], in[1], in[2], kTokens)}; });
  }
  append(all, "embed", {normal({9, kWidth}, "w"), token_ids(kSequences, kPositions, 9)},
         [](const Tensors& in) { return Tensors{embed(in[0], in[1])}; });
  append(all, "feed_forward",
         {rows, normal({12, kWidth}, "gate"), normal({12, kWidth}, "up"), normal({kWidth, 12}, "down")},
         [c](const Tensors& in) { return Tensors{feed_forward(c, 12, std::span(in).subspan(1), in[0])}; });
  Tensors unit{x};
  for (const at::Tensor& t : parameters(unit_specs(c)[1], {}, at::kFloat)) unit.push_back(t);
  append(all, "attention", unit, [c](const Tensors& in) {
    return Tensors{attention(c, attention_weights(c, std::span(in).subspan(1)), in[0])};
  });
  unit[0] = normal({1, kPositions, kWidth}, "x");
  append(all, "cached_attention", unit, [c](const Tensors& in) {
    const at::NoGradGuard no_grad;
    KvCache cache(c, DType::kF32, {kPositions});
    cache.begin({{0, kPositions}});
    return Tensors{cached_attention(c, attention_weights(c, std::span(in).subspan(1)), in[0], 0, cache)};
  });
}

void append_stages(std::vector<Operation>& all) {
  const ModelConfig c = small_model();
  const std::vector<UnitSpec> units = unit_specs(c);
  for (const StageSpec& stage : stage_specs(c)) {
    Tensors inputs{stage.kind == StageKind::kEmbed ? token_ids(kSequences, kPositions, 9)
                                                   : normal({kSequences, kPositions, kWidth}, "x")};
    std::vector<std::size_t> sizes;
    for (const int unit : stage.units) {
      const UnitTensors tensors =
          parameters(units[static_cast<std::size_t>(unit)], std::vector<int>{0, 1, 2, 3}, at::kFloat);
      inputs.insert(inputs.end(), tensors.begin(), tensors.end());
      sizes.push_back(tensors.size());
    }
    const auto units_of = [sizes](const Tensors& in) {
      std::vector<UnitTensors> found;
      auto next = in.begin() + 1;
      for (const std::size_t size : sizes) {
        found.emplace_back(next, next + static_cast<std::ptrdiff_t>(size));
        next += static_cast<std::ptrdiff_t>(size);
      }
      return found;
    };
    const char* name = stage.kind == StageKind::kEmbed  ? "stage_embed"
                       : stage.kind == StageKind::kHead ? "stage_head"
                                                        : "stage_layer";
    all.push_back({name, c, inputs, [c, stage, units_of](const Tensors& in, StepContext& context) {
                     const StageOutput output = run_stage(c, stage, units_of(in), in[0], context);
                     return Tensors{output.value, output.auxiliary};
                   }});
    if (stage.kind != StageKind::kHead) continue;
    inputs.push_back(token_ids(kSequences, kPositions, 9));
    all.push_back(
        {"head_with_loss", c, inputs, [c, stage, units_of](const Tensors& in, StepContext& context) {
           return Tensors{run_head_with_loss(c, stage, units_of(in), in[0], in.back(), context).value};
         }});
  }
}

void append_gates(std::vector<Operation>& all) {
  const at::Tensor x = normal({kTokens, kWidth}, "x"), router = normal({kExperts, kWidth}, "router", 0.5);
  append(all, "router_product", {x, router},
         [](const Tensors& in) { return Tensors{router_product(in[0], in[1])}; });
  for (const std::string& name : gate_names()) {
    if (!gate_named(name).has_router) continue;
    ModelConfig c = small_model();
    c.moe.gate.name = name;
    if (gate_named(name).top_k > 0) c.moe.gate.top_k = gate_named(name).top_k;
    if (name == "sam") c.moe.gate.num_groups = 2;
    if (name == "expert_choice") c.moe.gate.capacity_factor = 1.0;
    all.push_back({"route_" + name, c, {x, router}, [c](const Tensors& in, StepContext& context) {
                     const Routing routing = route(c, 0, in[0], in[1], kPositions, context);
                     return Tensors{routing.weights, routing.auxiliary};
                   }});
  }

  const at::Tensor logits = normal({kTokens, kExperts}, "logits");
  const GateOptions options = small_model().moe.gate;
  append(all, "softmax_choice", {logits}, [options](const Tensors& in) {
    const SoftmaxChoice choice = softmax_choice(in[0], choices_of(options, in[0]));
    return Tensors{choice.logits, choice.probabilities, choice.log_sums, choice.sums};
  });
  for (const ScoreKind score : {ScoreKind::kSoftmax, ScoreKind::kSigmoid}) {
    const Weighing weighing{
        .score = score, .blocks = score == ScoreKind::kSoftmax ? 2 : 1, .normalise = Normalise::kBeforeDrop};
    const std::string suffix = score == ScoreKind::kSoftmax ? "_softmax" : "_sigmoid";
    append(all, "choice_weights" + suffix, {logits}, [options, weighing](const Tensors& in) {
      const Choices choices = choices_of(options, in[0]);
      const RoutingPlan plan = admit(options, choices, choices.counts, kTokens, 0, 1);
      return Tensors{choice_weights(weighing, in[0], choices, plan)};
    });
    append(all, "expert_probabilities" + suffix, {logits},
           [weighing](const Tensors& in) { return Tensors{expert_probabilities(weighing, in[0])}; });
  }
  GateOptions sam = options;
  sam.name = "sam";
  sam.num_groups = 2;
  const at::Tensor p = at::softmax(logits, 1), valid = at::ones({kTokens, 1});
  append(all, "token_loss", {p}, [sam](const Tensors& in) {
    return Tensors{token_loss(sam, choices_of(sam, at::log(in[0].detach())), in[0])};
  });
  append(all, "probability_sums", {p, valid},
         [](const Tensors& in) { return Tensors{probability_sums(in[0], in[1], kSequences)}; });
  append(all, "mass_shares", {p}, [](const Tensors& in) { return Tensors{mass_shares(in[0])}; });
  append(all, "z_sum", {at::logsumexp(logits, 1, true), valid},
         [](const Tensors& in) { return Tensors{z_sum(in[0], in[1])}; });
}

void append_experts(std::vector<Operation>& all) {
  const at::Tensor x = normal({kTokens, kWidth}, "x"), weights = normal({kTokens, kChoices}, "weights").abs();
  const at::Tensor w_in = normal({kExperts, 12, kWidth}, "in", 0.5),
                   w_out = normal({kExperts, kWidth, 6}, "out", 0.5);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    all.push_back({type == at::kFloat ? "moe_experts" : "moe_experts_bf16",
                   small_model(),
                   {x.to(type), weights, w_in.to(type), w_out.to(type)},
                   [](const Tensors& in, StepContext& context) {
                     return Tensors{moe_experts(context.routes[0], Activation::kSwiGlu, some_plan(), in[0],
                                                in[1], in[2], in[3])};
                   }});
  }

  // The arithmetic below: on memory as it lies.
  const ExpertInput input =
      expert_input({DType::kF32, true, 2, 3, 2}, {0, 2, 3}, {0, 1, 1}, {0.5f, 1.0f, 2.0f});
  const at::Tensor in = normal({2, 4, 3}, "in"), out = normal({2, 3, 2}, "out"), r = normal({2, 3}, "r"),
                   slots = normal({3, 3}, "slots");
  for (const ProductKind kind : {ProductKind::kPanels, ProductKind::kLibrary}) {
    const std::string suffix = kind == ProductKind::kPanels ? "_panels" : "_library";
    append(
        all, "experts_forward" + suffix, {in, out},
        [=](const Tensors& t) {
          const at::NoGradGuard no_grad;
          return Tensors{experts_forward(kind, input, r.data_ptr(), t[0], t[1], false).outputs};
        },
        /*refuses=*/true);
    const at::Tensor before = experts_forward(kind, input, r.data_ptr(), in, out, true).before;
    append(
        all, "experts_backward" + suffix, {in, out},
        [=](const Tensors& t) {
          const at::NoGradGuard no_grad;
          const ExpertBackward back =
              experts_backward(kind, input, r.data_ptr(), r.data_ptr(), before, t[0], t[1]);
          return Tensors{back.d_inputs, back.d_w_in, back.d_w_out};
        },
        /*refuses=*/true);
  }
  append(
      all, "sum_slots", {slots},
      [=](const Tensors& t) { return Tensors{sum_slots(input, t[0], true, DType::kF32)}; },
      /*refuses=*/true);
  append(
      all, "slot_gradients", {slots},
      [=](const Tensors& t) { return Tensors{at::tensor(slot_gradients(input, r.data_ptr(), t[0]))}; },
      /*refuses=*/true);
}

std::vector<Operation> operations() {
  std::vector<Operation> all;
  append_blocks(all);
  append_stages(all);
  append_gates(all);
  append_experts(all);
  return all;
}

class Strided : public ::testing::TestWithParam<Operation> {};
INSTANTIATE_TEST_SUITE_P(Operations, Strided, ::testing::ValuesIn(operations()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Strided, InputsAreReadAsWhatTheyMeanOrRefused) {
  const Operation& operation = GetParam();
  const Tensors expected = outcome(operation, operation.inputs);
  for (const Layout layout : {&transposed, &spaced}) {
    for (std::size_t i = 0; i < operation.inputs.size(); ++i) {
      SCOPED_TRACE(fmt::format("input {} {}", i, layout == &spaced ? "spaced" : "transposed"));
      Tensors inputs = operation.inputs;
      inputs[i] = layout(inputs[i]);
      ASSERT_TRUE(at::equal(inputs[i], operation.inputs[i]));
      if (operation.refuses) {
        EXPECT_THROW(outcome(operation, inputs), InvalidArgument);
      } else {
        expect_equal(outcome(operation, inputs), expected);
      }
    }
  }
}

TEST_P(Strided, GradientsOfTheOutputsAreReadAsWhatTheyMean) {
  const Operation& operation = GetParam();
  const Tensors expected = outcome(operation, operation.inputs);
  for (const Layout layout : {&transposed, &spaced}) {
    expect_equal(outcome(operation, operation.inputs, layout), expected);
  }
}

}  // namespace
}  // namespace moesaic::testing
