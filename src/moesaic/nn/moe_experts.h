// moe_experts.h: dispatch, experts, combine as one differentiable function.
//
// Collective over route.group, forward and backward (also on ranks without tokens): forward is dispatch +
// combine; backward is dispatch_again + return_slot_values + combine on the same handle, so no routing is
// recomputed.
//
//   T tokens of this rank, K choices, D width, F expert width, E_local experts of this rank
//   y[t] = sum over k of weights[t,k] * F_e(t,k)(x[t]);  F_e(v) = activation(v w_in[e]^T) w_out[e]^T
//
// Rows and their gradients travel in the chunks of the dispatch: while the experts work on one, later ones
// are under way and sums of earlier ones travel home. The weights' gradients add slots in the order of one
// chunk, while the last sums travel.
//
// Order: owners sort rows by expert, then (source rank, token); each expert is one GEMM; sums as in
// contract 1. Experts without rows get gradients of exactly zero. Kept for the backward pass: received rows,
// pre-activations, outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "moesaic/nn/stage.h"
#include "moesaic/routing/plan.h"

namespace moesaic {

// x [T,D], weights [T,K] fp32 (the plan's, differentiable), w_in [E_local,2F,D] (SwiGLU, gate rows first) or
// [E_local,F,D] (ReLU), w_out [E_local,D,F], all of x's dtype. Strided inputs are copied. Returns y [T,D].
// `taken`: where the rows' route is told, none in a group of one. `meanwhile`: called once, when the first
// rows are under way; autograd records what it does as if it were called outside. The gradients of y leave
// before the backward pass of that, and are waited for after it.
at::Tensor moe_experts(const ExpertRoute& route, Activation activation, const RoutingPlan& plan,
                       const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w_in,
                       const at::Tensor& w_out, std::optional<Route>* taken = nullptr,
                       const std::function<void()>& meanwhile = {});

}  // namespace moesaic
