#include "moesaic/nn/router_product.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "moesaic/kernels/panels.h"
#include "moesaic/nn/parallel.h"

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tokens of a task.
constexpr std::int64_t kPiece = 240;

struct RouterProduct : torch::autograd::Function<RouterProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    const std::int64_t tokens = x.size(0), width = x.size(1), experts = weight.size(0);
    const at::Tensor rows = x.contiguous(), matrix = weight.contiguous();
    std::vector<std::int64_t> each(static_cast<std::size_t>(experts));
    std::iota(each.begin(), each.end(), 0);
    std::vector<float> panels(static_cast<std::size_t>(kernels::panel_elements(experts, width)));
    kernels::pack_panels(DType::kF32, matrix.const_data_ptr<float>(), each.data(), nullptr, experts, width,
                         panels.data());
    at::Tensor logits = at::empty({tokens, experts}, x.options());
    const float* from = rows.const_data_ptr<float>();
    float* to = logits.mutable_data_ptr<float>();
    run_tasks((tokens + kPiece - 1) / kPiece, [&](std::int64_t piece) {
      const std::int64_t first = piece * kPiece;
      kernels::row_product(from + first * width, std::min(kPiece, tokens - first), width, panels.data(),
                           experts, to + first * experts);
    });
    return logits;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &g = gradients[0];
    at::Tensor d_x, d_weight;
    if (context->needs_input_grad(0)) d_x = at::mm(g, weight);
    if (context->needs_input_grad(1)) d_weight = at::mm(g.t(), x);
    return {d_x, d_weight};
  }
};

}  // namespace

at::Tensor router_product(const at::Tensor& x, const at::Tensor& weight) {
  return RouterProduct::apply(x, weight);
}

}  // namespace moesaic
