#include "moesaic/nn/balance.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    sum += a[i] * b[i];  // an absent layer is empty
  return sum;
}

float share_of(std::int64_t count, std::int64_t num_tokens) {
  return num_tokens == 0 ? 0.0f
                         : static_cast<float>(static_cast<double>(count) / static_cast<double>(num_tokens));
}

// Keeps `coupled` alive until the backward pass, when every layer's choices are known.
struct CoupledHolder : torch::CustomClassHolder {
  explicit CoupledHolder(std::shared_ptr<const CoupledBalance> c) : coupled(std::move(c)) {}
  std::shared_ptr<const CoupledBalance> coupled;
};

// Layers' shares add up to factor * sum over all pairs of layers (l, m) of chosen_l . probability_m: each
// layer brings the pairs it completes, so that the value needs no later layer; the gradient needs all.
struct Coupled : torch::autograd::Function<Coupled> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& sums,
                            const std::shared_ptr<const CoupledBalance>& coupled, int layer, double factor) {
    const auto l = static_cast<std::size_t>(layer);
    double value = dot(coupled->chosen[l], coupled->probability[l]);
    for (std::size_t m = 0; m < l; ++m) {
      value +=
          dot(coupled->chosen[m], coupled->probability[l]) + dot(coupled->chosen[l], coupled->probability[m]);
    }
    context->saved_data["coupled"] = c10::IValue::make_capsule(c10::make_intrusive<CoupledHolder>(coupled));
    context->saved_data["factor"] = factor;
    context->saved_data["num_experts"] = sums.size(1);
    return at::scalar_tensor(factor * value, at::kFloat);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = context->saved_data["coupled"].toCapsule();
    const CoupledBalance& coupled = *static_cast<const CoupledHolder&>(*holder).coupled;
    const std::int64_t num_experts = context->saved_data["num_experts"].toInt();
    at::Tensor chosen = at::zeros({1, num_experts}, at::kDouble);
    auto* sums = chosen.data_ptr<double>();
    for (const auto& layer : coupled.chosen) {
      for (std::size_t e = 0; e < layer.size(); ++e) sums[e] += layer[e];
    }
    const double scale = context->saved_data["factor"].toDouble() * gradients[0].item<double>();
    return {(chosen * scale).to(at::kFloat), {}, {}, {}};
  }
};

}  // namespace

at::Tensor probability_sums(const at::Tensor& probabilities, const at::Tensor& valid,
                            std::int64_t num_groups) {
  const std::int64_t group_size = num_groups == 0 ? 0 : probabilities.size(0) / num_groups;
  return at::sum((probabilities * valid).view({num_groups, group_size, probabilities.size(1)}), 1);
}

at::Tensor chosen_shares(Balance::Of of, const Choices& choices, std::int64_t num_experts,
                         std::int64_t num_groups) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_groups * num_experts), 0);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(num_groups), 0);
  const std::int64_t group_size = num_groups == 0 ? 1 : choices.num_tokens / num_groups;
  const auto counted = static_cast<std::size_t>(of == Balance::Of::kFirstChoices ? 1 : choices.num_choices);
  for (std::int64_t t = 0; t < choices.num_tokens; ++t) {
    if (!choices.valid[static_cast<std::size_t>(t)]) continue;
    const std::int64_t group = t / group_size;
    ++tokens[static_cast<std::size_t>(group)];
    const auto ids =
        std::span(choices.expert_ids).subspan(static_cast<std::size_t>(t * choices.num_choices), counted);
    for (const std::int32_t e : ids) {
      if (e >= 0) ++counts[static_cast<std::size_t>(group * num_experts + e)];
    }
  }
  at::Tensor shares = at::empty({num_groups, num_experts}, at::kFloat);
  auto* f = shares.data_ptr<float>();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    f[i] = share_of(counts[i], tokens[i / static_cast<std::size_t>(num_experts)]);
  }
  return shares;
}

at::Tensor global_shares(std::span<const std::int64_t> chosen, std::int64_t num_tokens) {
  at::Tensor shares = at::empty({1, std::ssize(chosen)}, at::kFloat);
  auto* f = shares.data_ptr<float>();
  for (std::size_t e = 0; e < chosen.size(); ++e) f[e] = share_of(chosen[e], num_tokens);
  return shares;
}

at::Tensor mass_shares(const at::Tensor& sums) {
  const at::Tensor mass = sums.detach(), total = at::sum(mass, 1, /*keepdim=*/true);
  return at::where(total > 0, mass / total, 0.0);
}

at::Tensor coupled_balance(const at::Tensor& sums, std::shared_ptr<const CoupledBalance> coupled, int layer,
                           std::int64_t num_moe_layers, std::int64_t num_tokens) {
  const auto layers = static_cast<double>(num_moe_layers);
  const double factor = num_tokens == 0 ? 0.0
                                        : static_cast<double>(sums.size(1)) /
                                              (layers * layers * static_cast<double>(num_tokens));
  return Coupled::apply(sums, coupled, layer, factor);
}

at::Tensor z_sum(const at::Tensor& log_sums, const at::Tensor& valid) {
  return at::sum(log_sums * log_sums * valid);
}

}  // namespace moesaic
