// experts_slots.h: some slots of one expert backward, up to what the gradients of its weights are sums of.
//
// For the sources of this room only.
#pragma once

#include <cstdint>

#include "moesaic/kernels/experts_parts.h"

namespace moesaic::kernels {

// Memory for panels of slots of one expert.
class SlotsBackward {
 public:
  // For `slots` at most.
  SlotsBackward(const ExpertShape& shape, std::int64_t slots);
  SlotsBackward(const SlotsBackward&) = delete;
  SlotsBackward& operator=(const SlotsBackward&) = delete;

  // n slots, whose entries of `row`, `slot_weight` and `before` begin there, in panels from slot `first` on,
  // by the expert's w_in [H,D] and w_out [D,F]; d_inputs [n,D]. Groups of slots that do not overlap may run
  // at once.
  void run(const void* g, const std::int64_t* row, const float* slot_weight, const void* before,
           const void* w_in, const void* w_out, std::int64_t first, std::int64_t n, void* d_inputs);

  // Panels of slots from `first` on: slot_weight * g, h, and the gradient of the pre-activations.
  float* d_out(std::int64_t first = 0) { return d_out_.as<float>() + first * shape_.width; }
  float* h(std::int64_t first = 0) { return h_.wide(first * shape_.expert_width); }
  float* d_before(std::int64_t first = 0) { return d_before_.wide(first * shape_.hidden_width()); }

 private:
  const ExpertShape& shape_;
  Buffer d_out_, d_in_;
  RoundedPanels h_, dh_, d_before_;
};

// Both gradients of an expert without slots.
void zero_weight_gradients(const ExpertShape& shape, void* d_w_in, void* d_w_out);

}  // namespace moesaic::kernels
