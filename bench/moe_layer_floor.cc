#include "bench/moe_layer_floor.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <numeric>

namespace moesaic::bench {

LayerFloor::LayerFloor(const LayerCase& layer, const LayerInputs& inputs, WeightSets& weights)
    : layer_(layer), rows_(inputs.rows), weights_(weights) {
  flat_ = new_rows({std::reduce(rows_.begin(), rows_.end())});
  padded_ = new_rows({layer.shape.num_experts, *std::max_element(rows_.begin(), rows_.end())});
  if (!layer.backward) return;
  d_w_in_ = at::zeros_like(inputs.weights.in);
  d_w_out_ = at::zeros_like(inputs.weights.out);
}

LayerFloor::Rows LayerFloor::new_rows(at::IntArrayRef leading) const {
  const auto rows = [&](std::int64_t width) {
    std::vector<std::int64_t> sizes = leading.vec();
    sizes.push_back(width);
    return at::empty(sizes, at::kFloat).uniform_(-1, 1).to(layer_.dtype);
  };
  const LayerShape& shape = layer_.shape;
  Rows all{
      rows(shape.width), rows(shape.hidden_width()), rows(shape.expert_width), rows(shape.width), {}, {}};
  if (layer_.backward) {
    all.d_hidden = rows(shape.expert_width);
    all.d_in = rows(shape.width);
  }
  return all;
}

bool LayerFloor::fp32_may_be_faster() const {
  return layer_.dtype == at::kBFloat16 && at::get_cpu_capability() != "AVX512";
}

// Each operand is copied once, right before it is used.
void LayerFloor::products(bool in_fp32) {
  const at::NoGradGuard no_grad;
  const LayerWeights& weights = weights_.next();
  const auto operand = [&](const at::Tensor& t) { return in_fp32 ? t.to(at::kFloat) : t; };
  const auto multiply = [&](at::Tensor result, const at::Tensor& a, const at::Tensor& b) {
    if (in_fp32) {
      result.copy_(at::mm(a, b));
    } else {
      at::mm_out(result, a, b);
    }
  };
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < layer_.shape.num_experts; ++e) {
    const std::int64_t n = rows_[static_cast<std::size_t>(e)];
    if (n == 0) continue;
    const auto rows = [&](const at::Tensor& t) { return t.narrow(0, begin, n); };
    const at::Tensor w_in = operand(weights.in.select(0, e)), w_out = operand(weights.out.select(0, e));
    const at::Tensor in = operand(rows(flat_.in)), hidden = operand(rows(flat_.hidden));
    multiply(rows(flat_.before), in, w_in.t());
    multiply(rows(flat_.out), hidden, w_out.t());
    if (layer_.backward) {
      const at::Tensor d_out = operand(rows(flat_.out)), d_before = operand(rows(flat_.before));
      multiply(rows(flat_.d_hidden), d_out, w_out);
      multiply(d_w_out_.select(0, e), d_out.t(), hidden);
      multiply(rows(flat_.d_in), d_before, w_in);
      multiply(d_w_in_.select(0, e), d_before.t(), in);
    }
    begin += n;
  }
}

void LayerFloor::bmm() {
  const at::NoGradGuard no_grad;
  const LayerWeights& weights = weights_.next();
  at::bmm_out(padded_.before, padded_.in, weights.in.transpose(1, 2));
  at::bmm_out(padded_.out, padded_.hidden, weights.out.transpose(1, 2));
  if (!layer_.backward) return;
  at::bmm_out(padded_.d_hidden, padded_.out, weights.out);
  at::bmm_out(d_w_out_, padded_.out.transpose(1, 2), padded_.hidden);
  at::bmm_out(padded_.d_in, padded_.before, weights.in);
  at::bmm_out(d_w_in_, padded_.before.transpose(1, 2), padded_.in);
}

void LayerFloor::read_weights() {
  constexpr std::int64_t kPiece = 1 << 15;  // words
  const LayerWeights& weights = weights_.next();
  std::atomic<std::uint64_t> sum = 0;
  for (std::int64_t e = 0; e < layer_.shape.num_experts; ++e) {
    if (rows_[static_cast<std::size_t>(e)] == 0) continue;
    for (const at::Tensor& all : {weights.in, weights.out}) {
      const at::Tensor matrix = all.select(0, e);
      const auto* words = static_cast<const std::uint64_t*>(matrix.data_ptr());
      at::parallel_for(0, static_cast<std::int64_t>(matrix.nbytes() / sizeof(std::uint64_t)), kPiece,
                       [&](std::int64_t first, std::int64_t end) {
                         sum += std::accumulate(words + first, words + end, std::uint64_t{0});
                       });
    }
  }
  sum_ += sum;
}

}  // namespace moesaic::bench
