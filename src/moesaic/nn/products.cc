#include "moesaic/nn/products.h"

#include <ATen/Version.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kWidenedRows = 8;

bool widens(const at::Tensor& x, std::int64_t rows) {
  return x.scalar_type() == at::kBFloat16 && widens_bf16(rows);
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kFloat); }

struct WideProjection : torch::autograd::Function<WideProjection> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return at::linear(wide(x), wide(weight)).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor g = wide(gradients[0]);
    at::Tensor d_x, d_weight;
    if (context->needs_input_grad(0)) d_x = at::matmul(g, wide(weight)).to(x.scalar_type());
    if (context->needs_input_grad(1)) {
      d_weight =
          at::mm(g.reshape({-1, g.size(-1)}).t(), wide(x).reshape({-1, x.size(-1)})).to(weight.scalar_type());
    }
    return {d_x, d_weight};
  }
};

}  // namespace

bool widens_bf16(std::int64_t rows) {
  static const bool narrow_vectors = at::get_cpu_capability() != "AVX512";
  return narrow_vectors && rows >= kWidenedRows;
}

void multiply_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (widens(a, a.size(0))) {
    out.copy_(at::mm(wide(a), wide(b)));
  } else {
    at::mm_out(out, a, b);
  }
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight) {
  const std::int64_t rows = x.numel() / std::max<std::int64_t>(1, x.size(-1));
  return widens(x, rows) ? WideProjection::apply(x, weight) : at::linear(x, weight);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& mask, bool causal) {
  constexpr double kDropout = 0.0;
  if (!widens(q, q.size(2))) return at::scaled_dot_product_attention(q, k, v, mask, kDropout, causal);
  return at::scaled_dot_product_attention(wide(q), wide(k), wide(v), mask, kDropout, causal)
      .to(q.scalar_type());
}

}  // namespace moesaic
