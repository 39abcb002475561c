// moe_layer_floor.h: what the layer is measured against in this process: its products alone, on rows that are
// already in their experts' order, into memory that is there.
#pragma once

#include <vector>

#include "bench/moe_layer_ours.h"

namespace moesaic::bench {

class LayerFloor {
 public:
  LayerFloor(const LayerCase& layer, const LayerInputs& inputs, WeightSets& weights);

  // at::mm per expert.
  void mm() { products(/*in_fp32=*/false); }
  // The same on copies of the operands in fp32: the library's fastest where a CPU cannot multiply bf16.
  void mm_in_fp32() { products(/*in_fp32=*/true); }
  bool fp32_may_be_faster() const;
  // One at::bmm over all experts; every expert has as many rows as the fullest.
  void bmm();
  // Reads the weights of experts that have tokens, and computes nothing.
  void read_weights();

 private:
  // Rows of all experts, one after the other or each padded to the fullest.
  struct Rows {
    at::Tensor in, before, hidden, out, d_hidden, d_in;
  };
  Rows new_rows(at::IntArrayRef leading) const;
  void products(bool in_fp32);

  LayerCase layer_;
  std::vector<std::int64_t> rows_;
  WeightSets& weights_;
  Rows flat_, padded_;
  at::Tensor d_w_in_, d_w_out_;
  std::uint64_t sum_ = 0;  // of what was read, so that it is read
};

}  // namespace moesaic::bench
