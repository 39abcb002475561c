#include "bench/moe_layer_ours.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>

#include "moesaic/comm/inproc.h"
#include "moesaic/nn/moe_experts.h"

namespace moesaic::bench {
namespace {

ModelConfig config_of(const LayerShape& shape) {
  ModelConfig config;
  config.num_layers = 1;
  config.d_model = shape.width;
  config.activation = shape.gated ? Activation::kSwiGlu : Activation::kRelu;
  config.moe.gate.name = shape.top_k == 1 ? "switch" : "top_k";
  config.moe.gate.num_experts = shape.num_experts;
  config.moe.gate.top_k = shape.top_k;
  config.moe.gate.capacity_factor = shape.capacity_factor;
  if (shape.top_k > 1) config.moe.gate.normalise = Normalise::kBeforeDrop;
  config.moe.d_expert = shape.expert_width;
  return config;
}

}  // namespace

WeightSets::WeightSets(const LayerInputs& inputs, bool requires_grad) {
  for (std::int64_t i = 0; i < inputs.num_sets; ++i) {
    sets_.push_back({inputs.weights.in.clone().requires_grad_(requires_grad),
                     inputs.weights.out.clone().requires_grad_(requires_grad)});
  }
}

OneRank::OneRank()
    : transport_(std::move(make_inproc_transports(1).front())),
      world_(*transport_, Topology::one_node(1), std::chrono::minutes(1)) {}

OurLayer::OurLayer(const LayerCase& layer, const LayerInputs& inputs, WeightSets& weights,
                   Communicator& world, const DispatchOptions& dispatch)
    : backward_(layer.backward),
      config_(config_of(layer.shape)),
      world_(world),
      placement_(
          Placement::contiguous(static_cast<int>(layer.shape.num_experts), world.size(), world.size())),
      dispatch_(dispatch),
      x_(inputs.x.clone().requires_grad_(layer.backward)),
      router_(inputs.router.clone().requires_grad_(layer.backward)),
      gradient_(inputs.gradient),
      weights_(weights) {}

void OurLayer::run() {
  const LayerWeights& weights = weights_.next();
  if (!backward_) {
    const at::NoGradGuard no_grad;
    y_ = forward(weights);
    return;
  }
  for (const at::Tensor& leaf : {x_, router_, weights.in, weights.out}) leaf.mutable_grad() = at::Tensor();
  y_ = forward(weights);
  torch::autograd::backward({y_}, {gradient_});
}

LayerResults OurLayer::results() {
  run();
  const LayerWeights& weights = weights_.last();
  return {y_.detach(), x_.grad(), router_.grad(), weights.in.grad(), weights.out.grad()};
}

at::Tensor OurLayer::forward(const LayerWeights& weights) {
  StepContext context;
  context.training = false;
  context.world = &world_;
  context.routes = {{&world_, &placement_, dispatch_}};
  context.stats.resize(1);
  const Routing routing = moesaic::route(config_, 0, x_, router_, x_.size(0), context);
  return moe_experts(context.routes.front(), config_.activation, routing.plan, x_, routing.weights,
                     weights.in, weights.out, &taken_);
}

}  // namespace moesaic::bench
