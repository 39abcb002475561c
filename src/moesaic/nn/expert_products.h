// expert_products.h: the experts' arithmetic on rows that have arrived, by one of two ways of multiplying.
//
//   panels:  kernels/experts.h. Reads weights once, packs nothing for few rows; its vectors are 256 bits
//   wide. library: at::mm per expert on permuted rows. The faster where the CPU has 512-bit vectors or matrix
//   units,
//            which the library uses, and experts have rows enough to fill them.
//
// Local. T, R, S, D, F, H as in dispatch.h and kernels/experts.h. Both add in fp32 and round once to dtype;
// their bits differ. The choice depends on the CPU and on the local number of slots alone, unless panels are
// asked for. By panels a slot's bits do not depend on the other slots, so rows may come in chunks; by the
// library they might.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/kernels/experts.h"

namespace moesaic {

enum class ProductKind { kPanels, kLibrary };

// Whether the library's vectors here have 512 bits.
bool has_wide_vectors();
// From so many slots on the library is taken; where it never is, the largest number.
std::int64_t library_slots(std::int64_t num_experts, bool wide_vectors, bool only_panels);

// Which received rows each expert works on.
struct ExpertInput {
  kernels::ExpertShape shape;
  std::vector<std::int64_t> row_begin;  // [R+1] slots of row i, in row order
  std::vector<std::int64_t> position;   // [S] where each of those slots lies in expert order
  std::vector<float> weight;            // [S] of those slots
  // In expert order:
  std::vector<std::int64_t> expert_begin;  // [E+1]
  std::vector<std::int64_t> row;           // [S]
  std::vector<float> expert_order_weight;  // [S]

  std::int64_t num_rows() const { return static_cast<std::int64_t>(row_begin.size()) - 1; }
  std::int64_t num_slots() const { return static_cast<std::int64_t>(row.size()); }
  kernels::ExpertSlots slots() const { return {expert_begin.data(), row.data()}; }
};

// slot_expert, slot_weight [S] in row order.
ExpertInput expert_input(const kernels::ExpertShape& shape, std::vector<std::int64_t> row_begin,
                         const std::vector<std::int32_t>& slot_expert, std::vector<float> slot_weight);

struct ExpertForward {
  at::Tensor outputs;  // [S,D] in expert order, unweighted
  at::Tensor
      before;  // pre-activations, in whatever layout the same kind's backward wants; undefined unless kept
};
// These read memory as it lies: InvalidArgument for tensors that are not contiguous.
// rows: [R,D] of shape.dtype; w_in [E,H,D], w_out [E,D,F].
ExpertForward experts_forward(ProductKind kind, const ExpertInput& input, const void* rows,
                              const at::Tensor& w_in, const at::Tensor& w_out, bool keep);

struct ExpertBackward {
  at::Tensor d_inputs;  // [S,D] in expert order; undefined where the slots' step is over
  at::Tensor d_w_in, d_w_out;
};
// g [R,D]: gradient of each row's weighted sum.
ExpertBackward experts_backward(ProductKind kind, const ExpertInput& input, const void* g, const void* rows,
                                const at::Tensor& before, const at::Tensor& w_in, const at::Tensor& w_out);

// The same in two steps (kernels/experts.h), by panels. Of a chunk: d_inputs [S,D]; h [S,F] and d_before
// [S,H] are for the second step, in which slot s of `input` has row place[s] of them.
at::Tensor experts_backward_slots(const ExpertInput& input, const void* g, const at::Tensor& before,
                                  const at::Tensor& w_in, const at::Tensor& w_out, at::Tensor h,
                                  at::Tensor d_before);
ExpertBackward experts_backward_weights(const ExpertInput& input, std::span<const std::int64_t> place,
                                        const void* g, const void* rows, const at::Tensor& h,
                                        const at::Tensor& d_before, const at::Tensor& w_in,
                                        const at::Tensor& w_out);

// out [R,D] of `result` (outputs' dtype or fp32): each row's slots, weighted (all ones if `weighted` is
// false), in slot order; 0 for a row without.
at::Tensor sum_slots(const ExpertInput& input, const at::Tensor& outputs, bool weighted, DType result);

// [S] in row order: g of its row times its output.
std::vector<float> slot_gradients(const ExpertInput& input, const void* g, const at::Tensor& outputs);

}  // namespace moesaic
