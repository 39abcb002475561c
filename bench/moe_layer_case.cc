#include "bench/moe_layer_case.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

constexpr double kRouterNorm = 0.5;  // of each row
constexpr double kPull = 8.0;        // of a meant expert's logit over the others', in standard deviations
constexpr double kSkewedShare = 0.8;

at::Tensor uniform(at::IntArrayRef sizes, double limit) {
  return at::empty(sizes, at::kFloat).uniform_(-limit, limit);
}

// Bytes of the one that this core has a part in. (Some systems' sysconf adds up those of all cores, and so
// many sets of weights fill the machine.)
std::int64_t last_level_cache() {
  std::int64_t largest = 0;
  for (int index = 0;; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::int64_t kib = 0;
    if (!(file >> kib)) break;
    largest = std::max(largest, kib * 1024);
  }
  require(largest > 0, "moe_layer: the system does not tell the size of the last-level cache");
  return largest;
}

// While it lives.
class AllCores {
 public:
  AllCores() { at::set_num_threads(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))); }
  ~AllCores() { at::set_num_threads(before_); }
  AllCores(const AllCores&) = delete;
  AllCores& operator=(const AllCores&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// [T,K], each row a set of experts.
at::Tensor meant_experts(const LayerCase& layer) {
  const std::int64_t tokens = layer.num_tokens, experts = layer.shape.num_experts, k = layer.shape.top_k;
  const at::Tensor order = at::randperm(tokens, at::kLong);
  if (layer.spread == Spread::kBalanced || layer.shape.capacity_factor > 0) {
    require(tokens * k % experts == 0, "moe_layer: {} slots do not spread evenly over {} experts", tokens * k,
            experts);
    return (at::arange(tokens * k, at::kLong) % experts).view({tokens, k}).index_select(0, order);
  }
  at::Tensor score = at::rand({tokens, experts});
  if (layer.spread == Spread::kSkewed) {
    const auto on_one = static_cast<std::int64_t>(kSkewedShare * static_cast<double>(tokens));
    score.select(1, 0).narrow(0, 0, on_one).fill_(2);
    score.select(1, 0).narrow(0, on_one, tokens - on_one).fill_(-1);
  }
  return std::get<1>(at::topk(score, k, 1)).index_select(0, order);
}

}  // namespace

std::string LayerCase::name() const {
  return fmt::format("{} {} {} {}{}{}", shape.name, num_tokens, dtype == at::kFloat ? "fp32" : "bf16",
                     backward ? "forward+backward" : "forward", spread == Spread::kSkewed ? " skewed" : "",
                     threads > 1 ? fmt::format(" {} threads", threads) : "");
}

LayerInputs::LayerInputs(const LayerCase& layer) {
  at::manual_seed(7);
  const LayerShape& shape = layer.shape;
  const at::Tensor orthonormal = std::get<0>(at::linalg_qr(at::randn({shape.width, shape.num_experts})));
  router = (orthonormal.t() * kRouterNorm).to(layer.dtype).to(at::kFloat).contiguous();
  expert_ids = meant_experts(layer);
  const at::Tensor pull =
      at::zeros({layer.num_tokens, shape.num_experts}).scatter_(1, expert_ids, kPull / kRouterNorm);
  x = (uniform({layer.num_tokens, shape.width}, std::sqrt(3.0)) + at::mm(pull, router)).to(layer.dtype);
  gradient = uniform({layer.num_tokens, shape.width}, std::sqrt(3.0)).to(layer.dtype);
  const auto matrix = [&](std::int64_t rows_of, std::int64_t columns) {
    const double limit = std::sqrt(3.0 / static_cast<double>(columns));
    return uniform({shape.num_experts, rows_of, columns}, limit).to(layer.dtype);
  };
  weights = {matrix(shape.hidden_width(), shape.width), matrix(shape.width, shape.expert_width)};

  const at::Tensor counts = at::bincount(expert_ids.flatten(), {}, shape.num_experts);
  rows.assign(counts.data_ptr<std::int64_t>(), counts.data_ptr<std::int64_t>() + counts.numel());
  if (!layer.is_decode()) return;
  const std::int64_t used = (counts > 0).sum().item<std::int64_t>();
  const auto bytes =
      static_cast<std::int64_t>(weights.in.nbytes() + weights.out.nbytes()) / shape.num_experts * used;
  num_sets = 1 + 4 * last_level_cache() / bytes;
}

LayerResults reference_results(const LayerCase& layer, const LayerInputs& inputs) {
  const AllCores all_cores;
  const auto leaf = [&](const at::Tensor& t) {
    return t.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_(layer.backward);
  };
  const at::Tensor x = leaf(inputs.x), router = leaf(inputs.router);
  at::Tensor chosen = at::softmax(at::mm(x, router.t()), 1).gather(1, inputs.expert_ids);
  if (layer.shape.top_k > 1) chosen = chosen / chosen.sum(1, /*keepdim=*/true);
  at::Tensor y = at::zeros({layer.num_tokens, layer.shape.width}, at::kDouble);
  std::vector<at::Tensor> in, out;
  for (std::int64_t e = 0; e < layer.shape.num_experts; ++e) {
    const at::Tensor w_in = leaf(inputs.weights.in.select(0, e)),
                     w_out = leaf(inputs.weights.out.select(0, e));
    if (layer.backward) {
      in.push_back(w_in);
      out.push_back(w_out);
    }
    const at::Tensor where = at::nonzero(inputs.expert_ids == e), token = where.select(1, 0);
    if (token.size(0) == 0) continue;
    const at::Tensor before = at::mm(x.index_select(0, token), w_in.t());
    const std::vector<at::Tensor> parts = before.chunk(2, 1);
    const at::Tensor hidden = layer.shape.gated ? at::silu(parts[0]) * parts[1] : at::relu(before);
    const at::Tensor weight = chosen.index({token, where.select(1, 1)}).unsqueeze(1);
    y = y.index_add(0, token, at::mm(hidden, w_out.t()) * weight);
  }
  LayerResults results{y.detach(), {}, {}, {}, {}};
  if (!layer.backward) return results;
  torch::autograd::backward({y}, {inputs.gradient.to(at::kDouble)});
  const auto gradients = [](const std::vector<at::Tensor>& leaves) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : leaves) {
      all.push_back(one.grad().defined() ? one.grad() : at::zeros_like(one));
    }
    return at::stack(all);
  };
  results.d_x = x.grad();
  results.d_router = router.grad();
  results.d_w_in = gradients(in);
  results.d_w_out = gradients(out);
  return results;
}

std::string difference(const LayerResults& got, const LayerResults& expected, at::ScalarType dtype) {
  struct Pair {
    const char* what;
    const at::Tensor &got, &expected;
  };
  const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
  for (const Pair& pair :
       {Pair{"the output", got.y, expected.y}, Pair{"the gradient of x", got.d_x, expected.d_x},
        Pair{"the gradient of the router", got.d_router, expected.d_router},
        Pair{"the gradient of w_in", got.d_w_in, expected.d_w_in},
        Pair{"the gradient of w_out", got.d_w_out, expected.d_w_out}}) {
    if (!pair.expected.defined()) continue;
    if (!pair.got.defined()) return fmt::format("{} is missing", pair.what);
    const double by = (pair.got.detach().to(at::kDouble) - pair.expected).abs().max().item<double>();
    const double limit = tolerance * pair.expected.abs().max().item<double>();
    if (!(by <= limit)) return fmt::format("{} differs by {:.3g}, allowed {:.3g}", pair.what, by, limit);
  }
  return "";
}

}  // namespace moesaic::bench
