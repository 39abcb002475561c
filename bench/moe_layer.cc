// One MoE layer on one process: router, layout transform, experts, weighted sum; against the bare GEMMs of
// the same experts on rows that are already permuted (floor_mm: at::mm per expert into memory that is there).
//
//   W1: D 512, F 512, 16 experts, switch gate, capacity 1.0, ReLU   (HetuMoE's layer, scaled)
//   W2: D 512, F 256, 64 experts, top-8, SwiGLU, dropless
//   W3: D 2048, F 1024, 64 experts, top-8, SwiGLU                   (OLMoE-1B-7B's layer)
// Decode shapes (32 tokens and fewer) rotate over enough sets of weights that none is still in the cache.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <memory>

#include "bench/benchmarks.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/core/error.h"
#include "moesaic/nn/moe_experts.h"
#include "moesaic/nn/router.h"

namespace moesaic::bench {
namespace {

constexpr std::int64_t kDecodeTokens = 32;

struct Shape {
  std::string name;
  std::int64_t width, expert_width, num_experts, top_k;
  bool gated;
  double capacity_factor;
  std::int64_t hidden_width() const { return gated ? 2 * expert_width : expert_width; }
};
const Shape kW1{"W1", 512, 512, 16, 1, false, 1.0};
const Shape kW2{"W2", 512, 256, 64, 8, true, 0.0};
const Shape kW3{"W3", 2048, 1024, 64, 8, true, 0.0};

ModelConfig config_of(const Shape& shape) {
  ModelConfig config;
  config.num_layers = 1;
  config.d_model = shape.width;
  config.activation = shape.gated ? Activation::kSwiGlu : Activation::kRelu;
  config.moe.gate.name = shape.top_k == 1 ? "switch" : "top_k";
  config.moe.gate.num_experts = shape.num_experts;
  config.moe.gate.top_k = shape.top_k;
  config.moe.gate.capacity_factor = shape.capacity_factor;
  config.moe.d_expert = shape.expert_width;
  return config;
}

struct Weights {
  at::Tensor in, out;
};

at::Tensor uniform(at::IntArrayRef sizes, double limit, at::ScalarType dtype) {
  return at::empty(sizes, at::kFloat).uniform_(-limit, limit).to(dtype);
}

class Layer {
 public:
  Layer(const Shape& shape, std::int64_t num_tokens, at::ScalarType dtype, bool backward)
      : shape_(shape),
        config_(config_of(shape)),
        backward_(backward),
        transport_(std::move(make_inproc_transports(1).front())),
        world_(*transport_, Topology::one_node(1), std::chrono::minutes(1)),
        placement_(Placement::contiguous(static_cast<int>(shape.num_experts), 1, 1)) {
    at::manual_seed(7);
    x_ = uniform({num_tokens, shape.width}, 1.7, dtype).requires_grad_(backward);
    router_ = uniform({shape.num_experts, shape.width}, 0.05, at::kFloat).requires_grad_(backward);
    gradient_ = uniform({num_tokens, shape.width}, 1.7, dtype);
    weights_.push_back(new_weights(dtype));
    const Routing routing = route_tokens(x_.detach());
    plan_ = routing.plan;
    std::int64_t used = 0;
    for (const std::int64_t n : plan_.kept) used += n > 0;
    if (num_tokens <= kDecodeTokens) {
      const std::int64_t bytes =
          used * (weights_[0].in.nbytes() + weights_[0].out.nbytes()) / shape.num_experts;
      const std::int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
      require(cache > 0, "moe_layer: the system does not tell the size of the last-level cache");
      const std::int64_t sets = 1 + 4 * cache / bytes;
      while (std::ssize(weights_) < sets) weights_.push_back(new_weights(dtype));
    }
    make_floor(dtype);
  }

  // Of the products alone; backward makes two more for every one.
  double flops() const {
    return (backward_ ? 3.0 : 1.0) * 2.0 * static_cast<double>(shape_.width) *
           static_cast<double>(num_slots()) *
           static_cast<double>(shape_.hidden_width() + shape_.expert_width);
  }

  void run() {
    const Weights& weights = next();
    if (!backward_) {
      const at::NoGradGuard no_grad;
      y_ = forward(x_, weights);
      return;
    }
    for (const at::Tensor& leaf : {x_, router_, weights.in, weights.out}) leaf.mutable_grad() = at::Tensor();
    y_ = forward(x_, weights);
    torch::autograd::backward({y_}, {gradient_});
  }

  void run_floor() {
    const Weights& weights = next();
    const at::NoGradGuard no_grad;
    for (std::int64_t e = 0; e < shape_.num_experts; ++e) {
      const std::int64_t begin = begin_[static_cast<std::size_t>(e)];
      const std::int64_t n = begin_[static_cast<std::size_t>(e) + 1] - begin;
      if (n == 0) continue;
      const auto rows = [&](const at::Tensor& t) { return t.narrow(0, begin, n); };
      at::Tensor before = rows(before_), out = rows(out_);
      const at::Tensor w_in = weights.in.select(0, e), w_out = weights.out.select(0, e);
      at::mm_out(before, rows(in_), w_in.t());
      at::mm_out(out, rows(hidden_), w_out.t());
      if (!backward_) continue;
      at::Tensor d_hidden = rows(d_hidden_), d_in = rows(d_in_), d_w_out = d_w_out_.select(0, e),
                 d_w_in = d_w_in_.select(0, e);
      at::mm_out(d_hidden, rows(out_), w_out);
      at::mm_out(d_w_out, rows(out_).t(), rows(hidden_));
      at::mm_out(d_in, rows(before_), w_in);
      at::mm_out(d_w_in, rows(before_).t(), rows(in_));
    }
  }

  // Against the same tokens through every chosen expert in fp64.
  std::string check() {
    run();
    const Weights& weights = weights_[used_];
    const at::Tensor x = x_.detach().to(at::kDouble).requires_grad_(backward_);
    std::vector<at::Tensor> in, out;
    const Routing routing = route_tokens(x_.detach());
    at::Tensor y = at::zeros({x.size(0), shape_.width}, at::kDouble);
    const at::Tensor ids = at::empty({x.size(0), shape_.top_k}, at::kLong);
    std::copy(routing.plan.expert_ids.begin(), routing.plan.expert_ids.end(), ids.data_ptr<std::int64_t>());
    for (std::int64_t e = 0; e < shape_.num_experts; ++e) {
      const at::Tensor where = at::nonzero(ids == e);
      in.push_back(weights.in.select(0, e).detach().to(at::kDouble).requires_grad_(backward_));
      out.push_back(weights.out.select(0, e).detach().to(at::kDouble).requires_grad_(backward_));
      if (where.size(0) == 0) continue;
      const at::Tensor token = where.select(1, 0), before = at::mm(x.index_select(0, token), in.back().t());
      const auto parts = before.chunk(2, 1);
      const at::Tensor h = shape_.gated ? at::silu(parts[0]) * parts[1] : at::relu(before);
      const at::Tensor weight = routing.weights.detach().to(at::kDouble).index({token, where.select(1, 1)});
      y = y.index_add(0, token, at::mm(h, out.back().t()) * weight.unsqueeze(1));
    }
    const double tolerance = x_.scalar_type() == at::kFloat ? 1e-5 : 2e-2;
    std::string wrong = compare("output", y_.detach(), y.detach(), tolerance);
    if (!wrong.empty() || !backward_) return wrong;
    torch::autograd::backward({y}, {gradient_.to(at::kDouble)});
    for (std::size_t e = 0; e < in.size() && wrong.empty(); e += 5) {
      if (!in[e].grad().defined()) continue;
      const auto at_e = static_cast<std::int64_t>(e);
      wrong = compare("d w_in", weights.in.grad().select(0, at_e), in[e].grad(), tolerance);
      if (wrong.empty()) {
        wrong = compare("d w_out", weights.out.grad().select(0, at_e), out[e].grad(), tolerance);
      }
    }
    return wrong;
  }

 private:
  static std::string compare(const char* what, const at::Tensor& got, const at::Tensor& expected,
                             double tolerance) {
    const double difference = (got.to(at::kDouble) - expected).abs().max().item<double>();
    const double limit = tolerance * expected.abs().max().item<double>();
    return difference <= limit ? "" : fmt::format("{} differs by {}, allowed {}", what, difference, limit);
  }

  Weights new_weights(at::ScalarType dtype) const {
    const double in_limit = std::sqrt(3.0 / static_cast<double>(shape_.width));
    const double out_limit = std::sqrt(3.0 / static_cast<double>(shape_.expert_width));
    return {uniform({shape_.num_experts, shape_.hidden_width(), shape_.width}, in_limit, dtype)
                .requires_grad_(backward_),
            uniform({shape_.num_experts, shape_.width, shape_.expert_width}, out_limit, dtype)
                .requires_grad_(backward_)};
  }

  const Weights& next() {
    used_ = (used_ + 1) % weights_.size();
    return weights_[used_];
  }

  Routing route_tokens(const at::Tensor& x) {
    StepContext context;
    context.training = false;
    context.world = &world_;
    context.routes = {{&world_, &placement_}};
    context.stats.resize(1);
    return route(config_, 0, x, router_, x.size(0), context);
  }

  at::Tensor forward(const at::Tensor& x, const Weights& weights) {
    const Routing routing = route_tokens(x);
    return moe_experts({&world_, &placement_}, config_.activation, routing.plan, x, routing.weights,
                       weights.in, weights.out);
  }

  std::int64_t num_slots() const { return begin_.back(); }

  void make_floor(at::ScalarType dtype) {
    begin_ = {0};
    for (const std::int64_t n : plan_.kept) begin_.push_back(begin_.back() + n);
    const auto rows = [&](std::int64_t width) { return uniform({num_slots(), width}, 1.0, dtype); };
    in_ = rows(shape_.width);
    before_ = rows(shape_.hidden_width());
    hidden_ = rows(shape_.expert_width);
    out_ = rows(shape_.width);
    if (!backward_) return;
    d_hidden_ = rows(shape_.expert_width);
    d_in_ = rows(shape_.width);
    d_w_in_ = at::zeros_like(weights_[0].in.detach());
    d_w_out_ = at::zeros_like(weights_[0].out.detach());
  }

  Shape shape_;
  ModelConfig config_;
  bool backward_;
  std::unique_ptr<Transport> transport_;
  Communicator world_;
  Placement placement_;
  at::Tensor x_, router_, gradient_, y_;
  std::vector<Weights> weights_;
  std::size_t used_ = 0;
  RoutingPlan plan_;
  std::vector<std::int64_t> begin_;
  at::Tensor in_, before_, hidden_, out_, d_hidden_, d_in_, d_w_in_, d_w_out_;
};

void measure(Report& report, const Shape& shape, std::int64_t num_tokens, at::ScalarType dtype,
             bool backward) {
  Layer layer(shape, num_tokens, dtype, backward);
  report.measure(
      {.name = fmt::format("{} {} {} {}", shape.name, num_tokens, dtype == at::kFloat ? "fp32" : "bf16",
                           backward ? "forward+backward" : "forward"),
       .work = {.flops = layer.flops()},
       .run = [&] { layer.run(); },
       .baseline = "floor_mm",
       .run_baseline = [&] { layer.run_floor(); },
       .check = [&] { return layer.check(); }});
}

void run(Report& report, const std::string& size) {
  at::set_num_threads(1);
  if (size == "tiny") {
    const Shape tiny{"tiny", 32, 16, 8, 2, true, 0.0};
    for (const bool backward : {false, true}) measure(report, tiny, 40, at::kFloat, backward);
    return;
  }
  const auto of_dtype = [&](at::ScalarType dtype) {
    for (const bool backward : {false, true}) {
      measure(report, kW1, 4096, dtype, backward);
      measure(report, kW2, 2048, dtype, backward);
      measure(report, kW2, 256, dtype, backward);
    }
    for (const std::int64_t tokens : {32, 1}) measure(report, kW2, tokens, dtype, false);
  };
  if (size == "decode") {
    for (const std::int64_t tokens : {32, 1}) measure(report, kW2, tokens, at::kFloat, false);
    return;
  }
  of_dtype(at::kFloat);
  for (const bool backward : {false, true}) measure(report, kW1, 32768, at::kFloat, backward);
  if (size == "fp32") return;
  of_dtype(at::kBFloat16);
  measure(report, kW3, 512, at::kBFloat16, false);
  measure(report, kW3, 8, at::kBFloat16, false);
}

}  // namespace

Benchmark moe_layer() {
  return {"moe_layer",
          "one MoE layer, one thread, against the bare GEMMs of its experts",
          1,
          {"full", "fp32", "decode", "tiny"},
          run};
}

}  // namespace moesaic::bench
