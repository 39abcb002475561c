#include "moesaic/nn/softmax_choice.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "moesaic/kernels/softmax_top_k.h"

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward needs of the choices.
struct Kept : torch::CustomClassHolder {
  std::vector<std::int32_t> ids;
  std::vector<float> log_sums, probabilities;
  std::vector<std::uint8_t> valid;
  std::int64_t num_choices = 0;
};

at::Tensor tensor_of(const std::vector<float>& values, std::int64_t rows, std::int64_t width) {
  at::Tensor tensor = at::empty({rows, width}, at::kFloat);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

at::Tensor chosen_logits(const at::Tensor& logits, const Choices& choices) {
  const std::int64_t k = choices.num_choices, experts = logits.size(1);
  at::Tensor chosen = at::empty({choices.num_tokens, k}, at::kFloat);
  const auto* from = logits.const_data_ptr<float>();
  auto* to = chosen.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < choices.num_tokens * k; ++i) {
    const std::int32_t e = choices.expert_ids[static_cast<std::size_t>(i)];
    to[i] = e >= 0 ? from[i / k * experts + e] : 0.0f;
  }
  return chosen;
}

struct Softmax : torch::autograd::Function<Softmax> {
  static variable_list forward(AutogradContext* context, const at::Tensor& logits, const Choices& choices) {
    const std::int64_t tokens = choices.num_tokens, k = choices.num_choices, experts = logits.size(1);
    if (logits.requires_grad()) {
      auto kept = c10::make_intrusive<Kept>();
      kept->ids = choices.expert_ids;
      kept->log_sums = choices.log_sums;
      kept->probabilities = choices.probabilities;
      kept->valid = choices.valid;
      kept->num_choices = k;
      context->saved_data["kept"] = c10::IValue::make_capsule(std::move(kept));
      context->save_for_backward({logits});
    }
    const auto groups = static_cast<std::int64_t>(choices.probability_sums.size()) / experts;
    return {chosen_logits(logits, choices), tensor_of(choices.probabilities, tokens, k),
            tensor_of(choices.log_sums, tokens, 1), tensor_of(choices.probability_sums, groups, experts)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["kept"].toCapsule();
    const Kept& kept = static_cast<const Kept&>(*capsule);
    const at::Tensor logits = context->get_saved_variables()[0];
    const std::int64_t tokens = logits.size(0), experts = logits.size(1), k = kept.num_choices;
    // q = exp(logit - log_sum): its gradient is theirs.
    at::Tensor d_chosen = at::empty({tokens, k}, at::kFloat), d_log_sums = at::empty({tokens}, at::kFloat);
    const at::Tensor given[4] = {gradients[0].contiguous(), gradients[1].contiguous(),
                                 gradients[2].contiguous(), gradients[3].contiguous()};
    const auto* d_q = given[1].const_data_ptr<float>();
    for (std::int64_t t = 0; t < tokens; ++t) {
      float folded = 0.0f;
      for (std::int64_t i = t * k; i < (t + 1) * k; ++i) {
        const float of_choice = kept.probabilities[static_cast<std::size_t>(i)] * d_q[i];
        d_chosen.mutable_data_ptr<float>()[i] = given[0].const_data_ptr<float>()[i] + of_choice;
        folded += of_choice;
      }
      d_log_sums.mutable_data_ptr<float>()[t] = given[2].const_data_ptr<float>()[t] - folded;
    }
    at::Tensor d_logits = at::empty({tokens, experts}, at::kFloat);
    const std::int64_t groups = given[3].size(0);
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t length = tokens / groups, first = group * length;
      kernels::softmax_top_k_backward(
          logits.const_data_ptr<float>() + first * experts, kept.log_sums.data() + first,
          kept.ids.data() + first * k, length, experts, k, kept.valid.data() + first,
          {d_chosen.const_data_ptr<float>() + first * k, d_log_sums.const_data_ptr<float>() + first,
           given[3].const_data_ptr<float>() + group * experts},
          d_logits.mutable_data_ptr<float>() + first * experts);
    }
    return {d_logits, {}};
  }
};

}  // namespace

SoftmaxChoice softmax_choice(const at::Tensor& logits, const Choices& choices) {
  const variable_list parts = Softmax::apply(logits.contiguous(), choices);
  return {parts[0], parts[1], parts[2], parts[3]};
}

}  // namespace moesaic
