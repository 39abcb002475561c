#include "moesaic/nn/moe_experts.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/ordered_sum.h"
#include "moesaic/kernels/permute.h"
#include "moesaic/nn/checks.h"

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What forward leaves for backward. Shapes: R rows, S slots (dispatch.h), permuted order (permute.h).
struct Saved : torch::CustomClassHolder {
  Communicator* group = nullptr;
  Activation activation = Activation::kSwiGlu;
  DType dtype = DType::kF32;
  DispatchHandle handle;
  Buffer rows;                             // [R,D]
  std::vector<std::int64_t> expert_begin;  // [E_local+1]
  std::vector<std::int64_t> position;      // [S]
  at::Tensor before_activation;            // [S,2F] or [S,F]
  at::Tensor outputs;                      // [S,D]
};

ConstRows const_rows(DType dtype, const at::Tensor& t) { return {t.data_ptr(), dtype, t.size(0), t.size(1)}; }

at::Tensor new_rows(const at::Tensor& like, std::int64_t num_rows, std::int64_t width) {
  return at::empty({num_rows, width}, like.options());
}

at::Tensor rows_of(const at::Tensor& permuted, const Saved& saved, std::size_t expert) {
  return permuted.narrow(0, saved.expert_begin[expert],
                         saved.expert_begin[expert + 1] - saved.expert_begin[expert]);
}

bool is_empty(const Saved& saved, std::size_t expert) {
  return saved.expert_begin[expert] == saved.expert_begin[expert + 1];
}

// out rows of e = in rows of e times w[e]^T (or w[e]); in and out in permuted order.
void multiply(const Saved& saved, const at::Tensor& in, const at::Tensor& w, bool transposed,
              at::Tensor& out) {
  for (std::size_t e = 0; e + 1 < saved.expert_begin.size(); ++e) {
    if (is_empty(saved, e)) continue;
    at::Tensor target = rows_of(out, saved, e);
    const at::Tensor matrix = w.select(0, static_cast<std::int64_t>(e));
    at::mm_out(target, rows_of(in, saved, e), transposed ? matrix.t() : matrix);
  }
}

// gradient[e] = (d_out rows of e)^T times (in rows of e); zero where there are none.
at::Tensor weight_gradient(const Saved& saved, const at::Tensor& d_out, const at::Tensor& in,
                           const at::Tensor& w) {
  at::Tensor gradient = at::empty_like(w);
  for (std::size_t e = 0; e + 1 < saved.expert_begin.size(); ++e) {
    at::Tensor target = gradient.select(0, static_cast<std::int64_t>(e));
    if (is_empty(saved, e)) {
      target.zero_();
    } else {
      at::mm_out(target, rows_of(d_out, saved, e).t(), rows_of(in, saved, e));
    }
  }
  return gradient;
}

at::Tensor permuted_inputs(const Saved& saved, const at::Tensor& like, std::int64_t width) {
  at::Tensor permuted = new_rows(like, saved.handle.num_slots(), width);
  kernels::permute_rows(saved.dtype, saved.rows.data(), saved.handle.slot_begin.data(), saved.position.data(),
                        saved.handle.num_rows(), width, permuted.data_ptr());
  return permuted;
}

at::Tensor activate(const Saved& saved, std::int64_t width) {
  at::Tensor h = new_rows(saved.before_activation, saved.handle.num_slots(), width);
  const auto function = saved.activation == Activation::kSwiGlu ? kernels::swiglu : kernels::relu;
  function(saved.dtype, saved.before_activation.data_ptr(), h.size(0), width, h.data_ptr(), {});
  return h;
}

at::Tensor activate_backward(const Saved& saved, const at::Tensor& dh) {
  at::Tensor d_before = at::empty_like(saved.before_activation);
  const auto function =
      saved.activation == Activation::kSwiGlu ? kernels::swiglu_backward : kernels::relu_backward;
  function(saved.dtype, saved.before_activation.data_ptr(), dh.data_ptr(), dh.size(0), dh.size(1),
           d_before.data_ptr(), {});
  return d_before;
}

// Adds each received row's slots up and sends the sums home. weight null = all ones.
at::Tensor sum_and_combine(const Saved& saved, const at::Tensor& permuted, const float* weight) {
  const std::int64_t width = permuted.size(1);
  at::Tensor sums = new_rows(permuted, saved.handle.num_rows(), width);
  kernels::ordered_weighted_sum(saved.dtype, permuted.data_ptr(), saved.handle.slot_begin.data(),
                                saved.position.data(), weight, sums.size(0), width, sums.data_ptr());
  at::Tensor home = new_rows(permuted, saved.handle.num_tokens, width);
  combine(*saved.group, saved.handle, const_rows(saved.dtype, sums),
          {home.data_ptr(), saved.dtype, home.size(0), width});
  return home;
}

struct Experts : torch::autograd::Function<Experts> {
  static at::Tensor forward(AutogradContext* context, const ExpertRoute& route, Activation activation,
                            const RoutingPlan& plan, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& w_in, const at::Tensor& w_out) {
    const std::int64_t expert_width = w_out.size(2), num_experts = w_in.size(0), width = x.size(1);
    auto owned = c10::make_intrusive<Saved>();
    Saved& saved = *owned;
    saved.group = route.group;
    saved.activation = activation;
    saved.dtype = compute_dtype("MoE input", x);
    RoutingPlan weighted = plan;
    std::copy_n(weights.data_ptr<float>(), weights.numel(), weighted.weights.begin());
    saved.handle = dispatch(*route.group, weighted, *route.placement, const_rows(saved.dtype, x), saved.rows);

    const DispatchHandle& handle = saved.handle;
    saved.expert_begin.resize(static_cast<std::size_t>(num_experts) + 1);
    saved.position.resize(static_cast<std::size_t>(handle.num_slots()));
    kernels::counting_permute(handle.slot_expert.data(), handle.num_slots(), num_experts,
                              saved.expert_begin.data(), saved.position.data());
    saved.before_activation = new_rows(x, handle.num_slots(), w_in.size(1));
    multiply(saved, permuted_inputs(saved, x, width), w_in, /*transposed=*/true, saved.before_activation);
    saved.outputs = new_rows(x, handle.num_slots(), width);
    multiply(saved, activate(saved, expert_width), w_out, /*transposed=*/true, saved.outputs);
    at::Tensor y = sum_and_combine(saved, saved.outputs, handle.slot_weight.data());

    context->save_for_backward({w_in, w_out});
    context->saved_data["saved"] = c10::IValue::make_capsule(std::move(owned));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["saved"].toCapsule();
    const Saved& saved = static_cast<const Saved&>(*capsule);
    const variable_list tensors = context->get_saved_variables();
    const at::Tensor &w_in = tensors[0], &w_out = tensors[1];
    const DispatchHandle& handle = saved.handle;
    const std::int64_t num_slots = handle.num_slots(), width = w_out.size(1), expert_width = w_out.size(2);

    const at::Tensor g = gradients[0].contiguous();
    Buffer g_rows;
    dispatch_again(*saved.group, handle, const_rows(saved.dtype, g), g_rows);

    std::vector<float> slot_gradient(static_cast<std::size_t>(num_slots));
    kernels::slot_dots(saved.dtype, g_rows.data(), saved.outputs.data_ptr(), handle.slot_begin.data(),
                       saved.position.data(), handle.num_rows(), width, slot_gradient.data());
    at::Tensor d_weights = at::empty({handle.num_tokens, handle.num_choices}, at::kFloat);
    return_slot_values(*saved.group, handle, slot_gradient,
                       {d_weights.data_ptr<float>(), static_cast<std::size_t>(d_weights.numel())});

    at::Tensor d_outputs = new_rows(g, num_slots, width);
    kernels::permute_rows_scaled(saved.dtype, g_rows.data(), handle.slot_begin.data(), saved.position.data(),
                                 handle.slot_weight.data(), handle.num_rows(), width, d_outputs.data_ptr());
    const at::Tensor d_w_out = weight_gradient(saved, d_outputs, activate(saved, expert_width), w_out);
    at::Tensor d_hidden = new_rows(g, num_slots, expert_width);
    multiply(saved, d_outputs, w_out, /*transposed=*/false, d_hidden);
    const at::Tensor d_before = activate_backward(saved, d_hidden);
    const at::Tensor d_w_in = weight_gradient(saved, d_before, permuted_inputs(saved, g, width), w_in);
    at::Tensor d_inputs = new_rows(g, num_slots, width);
    multiply(saved, d_before, w_in, /*transposed=*/false, d_inputs);
    at::Tensor d_x = sum_and_combine(saved, d_inputs, /*weight=*/nullptr);
    return {{}, {}, {}, d_x, d_weights, d_w_in, d_w_out};
  }
};

}  // namespace

at::Tensor moe_experts(const ExpertRoute& route, Activation activation, const RoutingPlan& plan,
                       const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w_in,
                       const at::Tensor& w_out) {
  require(route.group != nullptr && route.placement != nullptr, "MoE layer: its expert route is not set");
  const auto num_experts = static_cast<std::int64_t>(route.placement->experts_of(route.group->rank()).size());
  require(w_out.defined() && w_out.dim() == 3, "experts.down_proj: expected [experts, d_model, d_expert]");
  const std::int64_t width = x.size(1), expert_width = w_out.size(2);
  require_shape("experts.down_proj", w_out, {num_experts, width, expert_width});
  require_shape("experts.gate_up_proj", w_in,
                {num_experts, activation == Activation::kSwiGlu ? 2 * expert_width : expert_width, width});
  require_shape("routing weights", weights, {plan.num_tokens, plan.num_choices});
  require(w_in.scalar_type() == x.scalar_type() && w_out.scalar_type() == x.scalar_type(),
          "MoE layer: input is {}, gate_up {}, down {}: expected one dtype", c10::toString(x.scalar_type()),
          c10::toString(w_in.scalar_type()), c10::toString(w_out.scalar_type()));
  return Experts::apply(route, activation, plan, x.contiguous(), weights.contiguous(), w_in.contiguous(),
                        w_out.contiguous());
}

}  // namespace moesaic
