#include "moesaic/nn/moe_experts.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/expert_products.h"

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What forward leaves for backward.
struct Saved : torch::CustomClassHolder {
  Communicator* group = nullptr;
  DispatchHandle handle;
  ExpertInput input;
  ProductKind kind = ProductKind::kPanels;
  Buffer rows;         // [R,D]; empty in a group of one, where x itself is the rows
  at::Tensor before;   // pre-activations
  at::Tensor outputs;  // [S,D]
};

ConstRows const_rows(const at::Tensor& t) {
  return {t.data_ptr(), compute_dtype("rows", t), t.size(0), t.size(1)};
}

// Slots of every token, also of those without an expert: in a group of one the tokens are the rows.
std::vector<std::int64_t> token_begins(const DispatchHandle& handle) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(handle.num_tokens) + 1, 0);
  for (std::size_t i = 0; i < handle.sent_token.size(); ++i) {
    begins[static_cast<std::size_t>(handle.sent_token[i]) + 1] =
        handle.slot_begin[i + 1] - handle.slot_begin[i];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  return begins;
}

// Adds each received row's slots up and sends the sums home.
at::Tensor sum_and_combine(const Saved& saved, const at::Tensor& slots, bool weighted) {
  at::Tensor sums = sum_slots(saved.input, slots, weighted);
  if (saved.group->size() == 1) return sums;
  at::Tensor home = at::empty({saved.handle.num_tokens, sums.size(1)}, sums.options());
  const ConstRows shape = const_rows(home);
  combine(*saved.group, saved.handle, const_rows(sums),
          {home.data_ptr(), shape.dtype, shape.num_rows, shape.width});
  return home;
}

struct Experts : torch::autograd::Function<Experts> {
  static at::Tensor forward(AutogradContext* context, const ExpertRoute& route, Activation activation,
                            const RoutingPlan& plan, const at::Tensor& x, const at::Tensor& weights,
                            const at::Tensor& w_in, const at::Tensor& w_out, bool keep,
                            std::optional<Route>* taken) {
    auto owned = c10::make_intrusive<Saved>();
    Saved& saved = *owned;
    saved.group = route.group;
    RoutingPlan weighted = plan;
    std::copy_n(weights.data_ptr<float>(), weights.numel(), weighted.weights.begin());
    const bool alone = route.group->size() == 1;
    const ConstRows tokens = const_rows(x);
    saved.handle =
        alone ? plan_dispatch(*route.group, weighted, *route.placement, /*bytes_per_row=*/0)
              : dispatch(*route.group, weighted, *route.placement, tokens, saved.rows, route.dispatch);
    const DispatchHandle& handle = saved.handle;
    if (taken != nullptr && !alone) *taken = handle.route;
    const kernels::ExpertShape shape{tokens.dtype, activation == Activation::kSwiGlu, w_in.size(0), x.size(1),
                                     w_out.size(2)};
    saved.input = expert_input(shape, alone ? token_begins(handle) : handle.slot_begin, handle.slot_expert,
                               handle.slot_weight);
    saved.kind = product_kind(handle.num_slots(), shape.num_experts);
    ExpertForward products =
        experts_forward(saved.kind, saved.input, alone ? tokens.data : saved.rows.data(), w_in, w_out, keep);
    at::Tensor y = sum_and_combine(saved, products.outputs, /*weighted=*/true);
    if (!keep) return y;
    saved.before = products.before;
    saved.outputs = products.outputs;
    context->save_for_backward(alone ? variable_list{w_in, w_out, x} : variable_list{w_in, w_out});
    context->saved_data["saved"] = c10::IValue::make_capsule(std::move(owned));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["saved"].toCapsule();
    const Saved& saved = static_cast<const Saved&>(*capsule);
    const variable_list tensors = context->get_saved_variables();
    const at::Tensor &w_in = tensors[0], &w_out = tensors[1];
    const DispatchHandle& handle = saved.handle;
    const bool alone = saved.group->size() == 1;

    const at::Tensor g = gradients[0].contiguous();
    Buffer g_rows;
    if (!alone) dispatch_again(*saved.group, handle, const_rows(g), g_rows);
    const void* g_data = alone ? g.data_ptr() : g_rows.data();
    at::Tensor d_weights = at::empty({handle.num_tokens, handle.num_choices}, at::kFloat);
    return_slot_values(*saved.group, handle, slot_gradients(saved.input, g_data, saved.outputs),
                       {d_weights.data_ptr<float>(), static_cast<std::size_t>(d_weights.numel())});
    const ExpertBackward products =
        experts_backward(saved.kind, saved.input, g_data, alone ? tensors[2].data_ptr() : saved.rows.data(),
                         saved.before, w_in, w_out);
    const at::Tensor d_x = sum_and_combine(saved, products.d_inputs, /*weighted=*/false);
    return {{}, {}, {}, d_x, d_weights, products.d_w_in, products.d_w_out, {}, {}};
  }
};

}  // namespace

at::Tensor moe_experts(const ExpertRoute& route, Activation activation, const RoutingPlan& plan,
                       const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w_in,
                       const at::Tensor& w_out, std::optional<Route>* taken) {
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
  const bool keep = at::GradMode::is_enabled() && (x.requires_grad() || weights.requires_grad() ||
                                                   w_in.requires_grad() || w_out.requires_grad());
  return Experts::apply(route, activation, plan, x.contiguous(), weights.contiguous(), w_in.contiguous(),
                        w_out.contiguous(), keep, taken);
}

}  // namespace moesaic
