#include "moesaic/core/error.h"
#include "moesaic/nn/attention.h"
#include "moesaic/nn/embedding.h"
#include "tests/nn/model.h"

namespace moesaic::testing {
namespace {

TEST(ModelConfig, UnitsComeInForwardOrderUnderHuggingFaceNames) {
  ModelConfig c;
  c.num_layers = 2;
  c.num_dense_layers = 1;
  c.moe.gate.num_experts = 3;
  c.moe.num_shared_experts = 1;
  std::vector<std::string> names;
  for (const UnitSpec& unit : unit_specs(c)) names.push_back(unit.name);
  EXPECT_EQ(names, (std::vector<std::string>{"embed", "layers.0.attention", "layers.0.mlp",
                                             "layers.1.attention", "layers.1.router", "layers.1.gate_up",
                                             "layers.1.down", "layers.1.shared", "head"}));
  const UnitSpec gate_up = unit_specs(c)[5];
  ASSERT_EQ(gate_up.per_expert(), 2);
  EXPECT_EQ(gate_up.tensors[2].name, "model.layers.1.mlp.experts.1.gate_proj.weight");
  EXPECT_EQ(gate_up.tensors[3].name, "model.layers.1.mlp.experts.1.up_proj.weight");
  EXPECT_EQ(gate_up.tensors[3].shape, (std::vector<std::int64_t>{256, 128}));
  EXPECT_TRUE(unit_specs(c)[4].keep_fp32);
  EXPECT_FALSE(unit_specs(c)[1].tensors[0].decay);
}

TEST(ModelConfig, TiedEmbeddingsHaveNoHeadMatrixAndTheHeadAsksForTheEmbedding) {
  ModelConfig c;
  c.tie_embeddings = true;
  EXPECT_EQ(unit_specs(c).back().tensors.size(), 1u);
  EXPECT_EQ(stage_specs(c).back().units.back(), 0);
  EXPECT_EQ(stage_specs(c).size(), static_cast<std::size_t>(c.num_layers) + 2);
}

TEST(ModelConfig, Olmoe1b7bHasItsPublishedNumberOfParameters) {
  ModelConfig c;
  c.vocab_size = 50304;
  c.num_layers = 16;
  c.d_model = 2048;
  c.num_heads = 16;
  c.moe.gate.num_experts = 64;
  c.moe.gate.top_k = 8;
  c.moe.d_expert = 1024;
  std::int64_t total = 0;
  for (const UnitSpec& unit : unit_specs(c)) {
    for (const TensorSpec& tensor : unit.tensors) total += tensor.numel();
  }
  EXPECT_EQ(total, 6'919'161'856);
}

TEST(ModelConfig, RefusesWhatNoModelCanBe) {
  const auto broken = [](const std::function<void(ModelConfig&)>& edit) {
    ModelConfig c;
    edit(c);
    EXPECT_THROW(validate(c), InvalidArgument);
  };
  const ModelConfig defaults;
  EXPECT_NO_THROW(validate(defaults));
  broken([](ModelConfig& c) { c.num_heads = 3; });
  broken([](ModelConfig& c) { c.num_dense_layers = 5; });
  broken([](ModelConfig& c) { c.moe.jitter = 1.0; });
  broken([](ModelConfig& c) { c.moe.balance_convention = "two"; });
  broken([](ModelConfig& c) { c.moe.gate.top_k = 9; });
  broken([](ModelConfig& c) {
    c.moe.balance_convention = "hf";
    c.moe.balance_scope = BalanceScope::kRank;
  });
}

TEST(Params, PiecesOfATensorAreThePiecesOfTheWhole) {
  const TensorSpec spec{"some.weight", {10, 7}, Init::kNormal, 0.02, true};
  std::vector<float> whole(70), piece(20);
  initialise(spec, 1, 0, 70, whole.data());
  initialise(spec, 1, 33, 53, piece.data());
  EXPECT_TRUE(std::equal(piece.begin(), piece.end(), whole.begin() + 33));
  initialise(spec, 2, 33, 53, piece.data());
  EXPECT_FALSE(std::equal(piece.begin(), piece.end(), whole.begin() + 33));
  EXPECT_THROW(initialise(spec, 1, 60, 71, piece.data()), InvalidArgument);
}

TEST(Params, NormalValuesHaveTheAskedDeviation) {
  const TensorSpec spec{"w", {20000}, Init::kNormal, 0.02, true};
  at::Tensor values = at::empty({20000}, at::kFloat);
  initialise(spec, 1, 0, 20000, values.data_ptr<float>());
  EXPECT_NEAR(values.mean().item<double>(), 0.0, 5e-4);
  EXPECT_NEAR(values.std().item<double>(), 0.02, 5e-4);
}

TEST(Attention, RefusesMorePositionsThanTheModelWasMadeFor) {
  const ModelConfig c;
  const UnitTensors unit = parameters(unit_specs(c)[1], {}, at::kFloat);
  const AttentionWeights weights = attention_weights(c, unit);
  EXPECT_THROW(attention(c, weights, at::zeros({1, 129, 128})), InvalidArgument);
}

TEST(Embedding, AFrequentTokensGradientKeepsGrowingInBf16) {
  const at::Tensor weight = at::zeros({3, 2}).to(at::kBFloat16).requires_grad_();
  const at::Tensor y = embed(weight, at::ones({1000, 1}, at::kLong));
  torch::autograd::backward({y}, {at::ones_like(y)});
  EXPECT_EQ(weight.grad()[1][0].item<float>(), 1000.0f);  // a bf16 sum of ones stops at 256
  EXPECT_EQ(weight.grad()[0][0].item<float>(), 0.0f);
}

TEST(Embedding, RefusesIdsOutsideTheVocabulary) {
  const at::Tensor weight = at::zeros({3, 2});
  EXPECT_THROW(embed(weight, at::full({1, 1}, 3, at::kLong)), InvalidArgument);
  EXPECT_THROW(embed(weight, at::full({1, 1}, -1, at::kLong)), InvalidArgument);
}

TEST(CrossEntropy, EqualsLogSoftmaxAcrossBlocksOfRowsWithAndWithoutGradient) {
  const std::int64_t num_tokens = 1100;  // three blocks
  const at::Tensor hidden = normal({num_tokens, 6}, "h").requires_grad_(),
                   weight = normal({9, 6}, "w").requires_grad_();
  at::Tensor targets = token_ids(1, num_tokens, 9).view(-1);
  targets.narrow(0, 500, 30).fill_(-1);
  const at::Tensor loss = cross_entropy(hidden, weight, targets, 2000);
  torch::autograd::backward({loss * 3.0}, {});

  const at::Tensor h = hidden.detach().to(at::kDouble).requires_grad_(),
                   w = weight.detach().to(at::kDouble).requires_grad_();
  const at::Tensor picked =
      at::log_softmax(at::matmul(h, w.t()), 1).gather(1, targets.clamp_min(0).unsqueeze(1));
  const at::Tensor expected = -(picked.squeeze(1) * (targets >= 0)).sum() / 2000.0;
  torch::autograd::backward({expected * 3.0}, {});
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  expect_close(hidden.grad(), h.grad(), 1e-5, "hidden");
  expect_close(weight.grad(), w.grad(), 1e-5, "weight");
  EXPECT_EQ(hidden.grad().narrow(0, 500, 30).abs().max().item<float>(), 0.0f);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(cross_entropy(hidden, weight, targets, 2000).item<float>(), loss.item<float>());
}

TEST(CrossEntropy, RefusesTargetsThatNobodyCounted) {
  const at::Tensor hidden = at::zeros({2, 3}), weight = at::zeros({4, 3});
  EXPECT_EQ(cross_entropy(hidden, weight, at::full({2}, -1, at::kLong), 0).item<float>(), 0.0f);
  EXPECT_THROW(cross_entropy(hidden, weight, at::zeros({2}, at::kLong), 0), InvalidArgument);
  EXPECT_THROW(cross_entropy(hidden, weight, at::full({2}, 4, at::kLong), 2), InvalidArgument);
}

}  // namespace
}  // namespace moesaic::testing
