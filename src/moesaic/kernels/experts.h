// experts.h: all experts of a rank on the rows they were sent, fused: layout transform, both matrices,
// activation; forward and backward.
//
//   y[s] = activation(x[row[s]] w_in[e]^T) w_out[e]^T,  e the expert of slot s
//
// Local. Slots are in expert order: expert e has slots begin[e]..begin[e+1]. R rows received, S slots, E
// local experts, D width, F expert width, H = 2F (SwiGLU: gate rows first) or F (ReLU). Rows, weights and
// gradients are fp32 or bf16 (`dtype`); products add in fp32 along one chain per element and are rounded once
// to dtype, so the bits of a row's result do not depend on the other rows (panels.h). Cost: 2*S*D*(H+F)
// operations forward, twice that again backward; scratch a few MB per thread.
#pragma once

#include <cstdint>
#include <functional>

#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

struct ExpertShape {
  DType dtype;
  bool gated;  // SwiGLU; else ReLU
  std::int64_t num_experts, width, expert_width;
  std::int64_t hidden_width() const { return gated ? 2 * expert_width : expert_width; }
};

struct ExpertSlots {
  const std::int64_t* begin;  // [E+1]
  const std::int64_t* row;    // [S]
};

// Calls task(0) ... task(n-1), in any order, on as many threads as the caller likes; returns when all are
// done.
using RunTasks = std::function<void(std::int64_t n, const std::function<void(std::int64_t)>& task)>;

// Elements that `before` needs: pre-activations in panels, kept for the backward pass.
std::int64_t before_elements(const ExpertShape& shape, const ExpertSlots& slots);

// rows [R,D], w_in [E,H,D], w_out [E,D,F] -> outputs [S,D]. before: before_elements() of dtype, or null when
// there will be no backward pass.
void experts_forward(const ExpertShape& shape, const ExpertSlots& slots, const void* rows, const void* w_in,
                     const void* w_out, void* before, void* outputs, const RunTasks& run);

// Given d loss / d y[s] = round(slot_weight[s] * g[row[s]]) with g [R,D] and slot_weight [S]: d_inputs [S,D]
// for x[row[s]], d_w_in [E,H,D], d_w_out [E,D,F]; the weights' gradients add slots in order and are exactly 0
// for an expert without slots.
struct ExpertGradients {
  void *d_inputs, *d_w_in, *d_w_out;
};
void experts_backward(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                      const float* slot_weight, const void* rows, const void* before, const void* w_in,
                      const void* w_out, const ExpertGradients& gradients, const RunTasks& run);

// The same in two steps, to the same bits, for slots whose g comes part by part. First for the slots of each
// part, with the `before` of its forward pass: d_inputs, and what the second step needs.
struct SlotGradients {
  void *d_inputs, *h, *d_before;  // [S,D], [S,F], [S,H]
};
void experts_backward_slots(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                            const float* slot_weight, const void* before, const void* w_in, const void* w_out,
                            const SlotGradients& gradients, const RunTasks& run);

// Then for all slots, in their order: d_w_in and d_w_out. h and d_before of slot s are rows place[s].
void experts_backward_weights(const ExpertShape& shape, const ExpertSlots& slots, const std::int64_t* place,
                              const void* g, const float* slot_weight, const void* rows, const void* h,
                              const void* d_before, void* d_w_in, void* d_w_out, const RunTasks& run);

}  // namespace moesaic::kernels
