// Against the same functions in plain torch operators, which autograd differentiates.
#include "moesaic/nn/softmax_choice.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "moesaic/nn/gate_formulas.h"

namespace moesaic {
namespace {

constexpr std::int64_t kTokens = 12, kExperts = 10, kChoices = 3, kGroups = 2;

GateOptions options() {
  GateOptions options;
  options.name = "top_k";
  options.num_experts = kExperts;
  options.top_k = kChoices;
  return options;
}

// Tokens 1 and 7 are padding.
Choices choices_of(const at::Tensor& logits) {
  std::vector<std::uint8_t> mask(kTokens, 1);
  mask[1] = mask[7] = 0;
  GateInput input;
  input.logits = {logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())};
  input.mask = mask;
  input.sum_groups = kGroups;
  return choose(options(), input);
}

SoftmaxChoice plain(const at::Tensor& logits, const Choices& choices) {
  const at::Tensor ids = ids_tensor(choices.expert_ids, kTokens, kChoices);
  const at::Tensor p = at::softmax(logits, 1), there = ids >= 0, safe = ids.clamp_min(0);
  at::Tensor valid = at::empty({kTokens, 1}, at::kFloat);
  std::copy(choices.valid.begin(), choices.valid.end(), valid.data_ptr<float>());
  return {at::where(there, logits.gather(1, safe), 0.0), at::where(there, p.gather(1, safe), 0.0),
          at::logsumexp(logits, 1, true), (p * valid).view({kGroups, -1, kExperts}).sum(1)};
}

// All outputs, with gradients that differ by element, and none from what padding "chose".
at::Tensor loss(const SoftmaxChoice& c, const Choices& choices) {
  at::manual_seed(5);
  const at::Tensor there = ids_tensor(choices.expert_ids, kTokens, kChoices) >= 0;
  const auto weighted = [](const at::Tensor& t) { return (t * at::randn(t.sizes())).sum(); };
  return weighted(at::where(there, c.logits, 0.0)) + weighted(at::where(there, c.probabilities, 0.0)) +
         weighted(c.log_sums) + weighted(c.sums);
}

at::Tensor random_logits() {
  at::manual_seed(3);
  at::Tensor logits = at::randn({kTokens, kExperts}) * 2;
  for (const std::int64_t padding : {1, 7}) logits[padding].zero_();
  return logits;
}

TEST(SoftmaxChoice, EqualsPlainOperators) {
  const at::Tensor logits = random_logits();
  const Choices choices = choices_of(logits);
  const SoftmaxChoice got = softmax_choice(logits, choices), expected = plain(logits, choices);
  const at::Tensor there = ids_tensor(choices.expert_ids, kTokens, kChoices) >= 0;
  EXPECT_TRUE(at::equal(got.logits, expected.logits));
  EXPECT_TRUE(at::allclose(at::where(there, got.probabilities, 0.0), expected.probabilities, 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(got.log_sums, expected.log_sums, 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(got.sums, expected.sums, 1e-6, 1e-6));
  EXPECT_FALSE(got.sums.requires_grad());
}

TEST(SoftmaxChoice, HasTheGradientsOfPlainOperators) {
  const at::Tensor ours = random_logits().requires_grad_(true), theirs = random_logits().requires_grad_(true);
  const Choices choices = choices_of(ours.detach());
  torch::autograd::backward({loss(softmax_choice(ours, choices), choices)}, {});
  torch::autograd::backward({loss(plain(theirs, choices), choices)}, {});
  EXPECT_TRUE(at::allclose(ours.grad(), theirs.grad(), 1e-5, 1e-6)) << ours.grad() - theirs.grad();
}

TEST(SoftmaxChoice, TakesOutputsThatNobodyDifferentiates) {
  const at::Tensor logits = random_logits().requires_grad_(true);
  const Choices choices = choices_of(logits.detach());
  torch::autograd::backward({softmax_choice(logits, choices).log_sums.sum()}, {});
  EXPECT_TRUE(at::allclose(logits.grad(), at::softmax(logits.detach(), 1), 1e-5, 1e-6));
}

}  // namespace
}  // namespace moesaic
