// oracle.h: the model in plain torch operations and fp64, one process, no exchange: what the fast path must
// equal.
#pragma once

#include <cmath>

#include "tests/nn/model.h"

namespace moesaic::testing {

inline at::Tensor oracle_norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  return w * x / at::sqrt((x * x).mean(-1, true) + eps);
}

// Element by element; x [B,H,S,d].
inline at::Tensor oracle_rotary(const at::Tensor& x, double theta) {
  const std::int64_t d = x.size(3), half = d / 2;
  std::vector<at::Tensor> columns(static_cast<std::size_t>(d));
  const at::Tensor position = at::arange(x.size(2), at::kDouble);
  for (std::int64_t i = 0; i < half; ++i) {
    const at::Tensor angle =
        position * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
    const at::Tensor a = x.select(3, i), b = x.select(3, i + half);
    columns[static_cast<std::size_t>(i)] = a * angle.cos() - b * angle.sin();
    columns[static_cast<std::size_t>(i + half)] = b * angle.cos() + a * angle.sin();
  }
  return at::stack(columns, 3);
}

inline at::Tensor oracle_attention(const ModelConfig& c, const UnitTensors& u, const at::Tensor& x) {
  const std::int64_t b = x.size(0), s = x.size(1), h = c.num_heads, d = c.d_model / h;
  at::Tensor q = at::matmul(x, u[1].t()), k = at::matmul(x, u[2].t()), v = at::matmul(x, u[3].t());
  if (c.qk_norm) {
    q = oracle_norm(q, u[5], c.norm_eps);
    k = oracle_norm(k, u[6], c.norm_eps);
  }
  if (c.clip_qkv > 0) {
    q = q.clamp(-c.clip_qkv, c.clip_qkv);
    k = k.clamp(-c.clip_qkv, c.clip_qkv);
    v = v.clamp(-c.clip_qkv, c.clip_qkv);
  }
  const auto heads = [&](const at::Tensor& t) { return t.view({b, s, h, d}).transpose(1, 2); };
  const at::Tensor scores = at::matmul(oracle_rotary(heads(q), c.rope_theta),
                                       oracle_rotary(heads(k), c.rope_theta).transpose(2, 3)) /
                            std::sqrt(static_cast<double>(d));
  const at::Tensor future = at::ones({s, s}, at::kBool).triu(1);
  const at::Tensor p = at::softmax(scores.masked_fill(future, -INFINITY), -1);
  return at::matmul(at::matmul(p, heads(v)).transpose(1, 2).reshape({b, s, c.d_model}), u[4].t());
}

inline at::Tensor oracle_feed_forward(const ModelConfig& c, const at::Tensor& in, const at::Tensor& out,
                                      const at::Tensor& x) {
  const at::Tensor before = at::matmul(x, in.t());
  if (c.activation == Activation::kRelu) return at::matmul(at::relu(before), out.t());
  const auto parts = before.chunk(2, -1);
  return at::matmul(parts[0] * at::sigmoid(parts[0]) * parts[1], out.t());
}

inline at::Tensor oracle_dense(const ModelConfig& c, const UnitTensors& u, const at::Tensor& x) {
  return u.size() == 3 ? oracle_feed_forward(c, at::cat({u[0], u[1]}, 0), u[2], x)
                       : oracle_feed_forward(c, u[0], u[1], x);
}

// Dropless top-k with softmax weights, not normalised; every expert on every token.
inline at::Tensor oracle_moe(const ModelConfig& c, const UnitTensors& router, const UnitTensors& in,
                             const UnitTensors& out, const at::Tensor& x, at::Tensor& auxiliary) {
  const std::int64_t num_experts = c.moe.gate.num_experts, k = c.moe.gate.top_k, tokens = x.size(0);
  const at::Tensor logits = at::matmul(x, router[0].t()), p = at::softmax(logits, 1);
  const at::Tensor ids = std::get<1>(at::topk(logits.detach(), k, 1));
  at::Tensor y = at::zeros_like(x), balance = at::zeros({}, at::kDouble);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const at::Tensor chosen = (ids == e).any(1, true).to(at::kDouble);
    y = y + chosen * p.narrow(1, e, 1) * oracle_feed_forward(c, in[0][e], out[0][e], x);
    balance = balance + chosen.mean() * p.select(1, e).mean();
  }
  const double layers = static_cast<double>(c.num_layers - c.num_dense_layers);
  const double factor = static_cast<double>(num_experts) / static_cast<double>(k);
  auxiliary = auxiliary + balance * (factor * c.moe.balance_loss / layers) +
              at::logsumexp(logits, 1).square().sum() * (c.moe.z_loss / static_cast<double>(tokens) / layers);
  return y;
}

inline Pass oracle_pass(const ModelConfig& c, const Batch& batch) {
  const auto units = unit_specs(c);
  std::vector<int> every(static_cast<std::size_t>(c.moe.gate.num_experts));
  for (std::size_t e = 0; e < every.size(); ++e) every[e] = static_cast<int>(e);
  std::map<std::string, UnitTensors> u;
  for (const UnitSpec& unit : units) {
    for (const at::Tensor& t : parameters(unit, every, at::kFloat)) {
      u[unit.name].push_back(t.detach().to(at::kDouble).requires_grad_());
    }
  }
  at::Tensor x = at::embedding(u["embed"][0], batch.ids), auxiliary = at::zeros({}, at::kDouble);
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const std::string name = fmt::format("layers.{}.", layer);
    const UnitTensors& a = u[name + "attention"];
    x = x + oracle_attention(c, a, oracle_norm(x, a.front(), c.norm_eps));
    const at::Tensor normed = oracle_norm(x, a.back(), c.norm_eps);
    if (layer < c.num_dense_layers) {
      x = x + oracle_dense(c, u[name + "mlp"], normed);
      continue;
    }
    at::Tensor y = oracle_moe(c, u[name + "router"], u[name + "gate_up"], u[name + "down"],
                              normed.reshape({-1, c.d_model}), auxiliary);
    x = x + y.view(x.sizes());
    if (c.moe.num_shared_experts > 0) x = x + oracle_dense(c, u[name + "shared"], normed);
  }
  const at::Tensor hidden = oracle_norm(x, u["head"][0], c.norm_eps).reshape({-1, c.d_model});
  const at::Tensor weight = c.tie_embeddings ? u["embed"][0] : u["head"][1];
  const at::Tensor targets = batch.targets.reshape({-1}), has_target = targets >= 0;
  const at::Tensor log_p = at::log_softmax(at::matmul(hidden, weight.t()), 1);
  const at::Tensor picked = log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor loss = -(picked * has_target).sum() / has_target.sum();
  torch::autograd::backward({loss + auxiliary}, {at::ones({}, at::kDouble)});
  Pass pass;
  pass.loss = loss.item<double>();
  pass.auxiliary = auxiliary.item<double>();
  pass.hidden = x.detach();
  for (const auto& [name, tensors] : u) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      pass.gradients[fmt::format("{} {}", name, i)] =
          tensors[i].grad().defined() ? tensors[i].grad() : at::zeros_like(tensors[i]);
    }
  }
  return pass;
}

}  // namespace moesaic::testing
