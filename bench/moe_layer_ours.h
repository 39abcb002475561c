// moe_layer_ours.h: the layer under test, or this rank's part of it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "bench/moe_layer_case.h"
#include "moesaic/comm/communicator.h"
#include "moesaic/exchange/route.h"
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

// A group of one.
class OneRank {
 public:
  OneRank();
  Communicator& world() { return world_; }

 private:
  std::unique_ptr<Transport> transport_;
  Communicator world_;
};

// This rank's part of the layer: `inputs` has its tokens and its experts, out of all that the layer has.
class OurLayer {
 public:
  OurLayer(const LayerCase& layer, const LayerInputs& inputs, WeightSets& weights, Communicator& world,
           const DispatchOptions& dispatch = {});

  void run();
  // Of a run of its own.
  LayerResults results();
  // That rows took in the last run; none in a group of one.
  std::optional<Route> route() const { return taken_; }

 private:
  at::Tensor forward(const LayerWeights& weights);

  bool backward_;
  ModelConfig config_;
  Communicator& world_;
  Placement placement_;
  DispatchOptions dispatch_;
  std::optional<Route> taken_;
  at::Tensor x_, router_, gradient_, y_;
  WeightSets& weights_;
};

}  // namespace moesaic::bench
