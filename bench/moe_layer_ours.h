// moe_layer_ours.h: the layer under test, in this process.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "bench/moe_layer_case.h"
#include "moesaic/comm/communicator.h"
#include "moesaic/nn/router.h"
#include "moesaic/placement/placement.h"
#include "moesaic/train/config.h"

namespace moesaic::bench {

// Equal weights at several places in memory, used one after the other.
class WeightSets {
 public:
  WeightSets(const LayerInputs& inputs, bool requires_grad);
  const LayerWeights& next() {
    used_ = (used_ + 1) % sets_.size();
    return sets_[used_];
  }
  const LayerWeights& last() const { return sets_[used_]; }

 private:
  std::vector<LayerWeights> sets_;
  std::size_t used_ = 0;
};

class OurLayer {
 public:
  OurLayer(const LayerCase& layer, const LayerInputs& inputs, WeightSets& weights);

  void run();
  // Of a run of its own.
  LayerResults results();

 private:
  at::Tensor forward(const LayerWeights& weights);

  bool backward_;
  ModelConfig config_;
  std::unique_ptr<Transport> transport_;
  Communicator world_;
  Placement placement_;
  at::Tensor x_, router_, gradient_, y_;
  WeightSets& weights_;
};

}  // namespace moesaic::bench
