#include "moesaic/nn/gate_formulas.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct TokenLoss : torch::autograd::Function<TokenLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& p, const GateOptions& options,
                            const Choices& choices) {
    at::Tensor derivative = at::empty_like(p);
    const auto size = static_cast<std::size_t>(p.numel());
    const double sum = gate_named(options.name)
                           .token_loss(options, {p.const_data_ptr<float>(), size}, choices,
                                       {derivative.mutable_data_ptr<float>(), size});
    context->save_for_backward({derivative});
    return at::scalar_tensor(sum, at::kFloat);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {context->get_saved_variables()[0] * gradients[0], {}, {}};
  }
};

// s / sum s over a set = softmax over the set of log s; softmax(h) normalised over a set = softmax over it of
// h.
at::Tensor shares_of_set(const at::Tensor& log_scores, const at::Tensor& set) {
  return at::softmax(at::where(set, log_scores, static_cast<double>(std::numeric_limits<float>::lowest())),
                     1);
}

at::Tensor kept_mask(const RoutingPlan& plan) {
  return ids_tensor(plan.expert_ids, plan.num_tokens, plan.num_choices) >= 0;
}

}  // namespace

at::Tensor ids_tensor(const std::vector<std::int32_t>& ids, std::int64_t num_tokens,
                      std::int64_t num_choices) {
  at::Tensor tensor = at::empty({num_tokens, num_choices}, at::kLong);
  std::copy(ids.begin(), ids.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

at::Tensor choice_weights(const Weighing& weighing, const at::Tensor& logits, const Choices& choices,
                          const RoutingPlan& plan) {
  const at::Tensor wanted = ids_tensor(ids_before_drop(choices), plan.num_tokens, plan.num_choices);
  const at::Tensor kept = kept_mask(plan);
  if (weighing.score == ScoreKind::kOne) return kept.to(at::kFloat);
  const at::Tensor ids = wanted.clamp_min(0);
  const bool sigmoid = weighing.score == ScoreKind::kSigmoid;
  if (weighing.normalise == Normalise::kNone) {
    const at::Tensor scores = sigmoid ? at::sigmoid(logits) : expert_probabilities(weighing, logits);
    return at::where(kept, scores.gather(1, ids), 0.0);
  }
  const at::Tensor chosen = logits.gather(1, ids);
  const at::Tensor shares = shares_of_set(sigmoid ? at::log_sigmoid(chosen) : chosen,
                                          weighing.normalise == Normalise::kBeforeDrop ? wanted >= 0 : kept);
  return at::where(kept, sigmoid ? shares * weighing.scale : shares, 0.0);
}

at::Tensor choice_weights(const Weighing& weighing, const SoftmaxChoice& chosen, const Choices& choices,
                          const RoutingPlan& plan) {
  const at::Tensor kept = kept_mask(plan);
  if (weighing.normalise == Normalise::kNone) return at::where(kept, chosen.probabilities, 0.0);
  const at::Tensor set = weighing.normalise == Normalise::kBeforeDrop
                             ? ids_tensor(choices.expert_ids, plan.num_tokens, plan.num_choices) >= 0
                             : kept;
  return at::where(kept, shares_of_set(chosen.logits, set), 0.0);
}

at::Tensor expert_probabilities(const Weighing& weighing, const at::Tensor& logits) {
  if (weighing.score == ScoreKind::kSigmoid) return at::softmax(at::log_sigmoid(logits), 1);
  if (weighing.blocks == 1) return at::softmax(logits, 1);
  const std::int64_t width = logits.size(1) / weighing.blocks;
  return at::softmax(logits.view({logits.size(0), weighing.blocks, width}), 2).view(logits.sizes());
}

at::Tensor chosen_mask(const Choices& choices, std::int64_t num_experts) {
  at::Tensor mask = at::zeros({choices.num_tokens, num_experts}, at::kFloat);
  auto* out = mask.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < choices.expert_ids.size(); ++i) {
    const std::int32_t e = choices.expert_ids[i];
    if (e >= 0) out[static_cast<std::int64_t>(i) / choices.num_choices * num_experts + e] = 1.0f;
  }
  return mask;
}

at::Tensor token_loss(const GateOptions& options, const Choices& choices, const at::Tensor& p) {
  return TokenLoss::apply(p.contiguous(), options, choices);
}

}  // namespace moesaic
