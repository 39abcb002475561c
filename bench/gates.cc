// Each gate with the layout transform and its inverse (rows to their experts' order and back, weighted),
// against plain PyTorch code for the same: the router's product, selection, capacity, a sort of the choices,
// index_select, index_add. Forward, fp32, one thread. Experts are left out: y = sum of weights times x.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <memory>

#include "bench/benchmarks.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/kernels/ordered_sum.h"
#include "moesaic/kernels/permute.h"
#include "moesaic/nn/gate_states.h"
#include "moesaic/nn/router.h"
#include "moesaic/routing/auction.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic::bench {
namespace {

constexpr std::int64_t kVocab = 1000;

struct Shape {
  std::int64_t num_tokens, width, num_experts;
};

// Ids [T,K], -1 = absent, and weights.
struct Chosen {
  at::Tensor ids, weights;
};

// ---- plain PyTorch ----

// Drops what is past the capacity: all first choices come before any second choice.
at::Tensor within_capacity(const GateOptions& options, const at::Tensor& ids) {
  const std::int64_t tokens = ids.size(0), capacity = expert_capacity(options, tokens);
  if (capacity < 0) return ids;
  const at::Tensor in_order = ids.t().reshape({-1});
  const at::Tensor mask = at::one_hot(in_order, options.num_experts);
  const at::Tensor slot = (at::cumsum(mask, 0) - 1).gather(1, in_order.unsqueeze(1)).squeeze(1);
  return at::where(slot < capacity, in_order, -1).view({ids.size(1), tokens}).t();
}

Chosen plain_groups(const GateOptions& options, const at::Tensor& h) {
  const std::int64_t tokens = h.size(0), groups = options.num_groups;
  const at::Tensor s = at::sigmoid(h), by_group = s.view({tokens, groups, -1});
  const at::Tensor of_group = std::get<0>(at::topk(by_group, 2, 2)).sum(2);
  const at::Tensor best = std::get<1>(at::topk(of_group, options.kept_groups, 1));
  const at::Tensor out = at::ones({tokens, groups}, at::kBool).scatter_(1, best, false).unsqueeze(2);
  const at::Tensor ids =
      std::get<1>(at::topk(by_group.masked_fill(out, -INFINITY).view(h.sizes()), options.top_k, 1));
  const at::Tensor weights = s.gather(1, ids);
  return {ids, weights / weights.sum(1, true)};
}

Chosen plain_sam(const GateOptions& options, const at::Tensor& p) {
  const at::Tensor by_group = p.view({p.size(0), options.num_groups, -1});
  const at::Tensor best = at::argmax(by_group.sum(2), 1, /*keepdim=*/true);
  const at::Tensor out = at::ones({p.size(0), options.num_groups}, at::kBool).scatter_(1, best, false);
  const auto [weights, ids] =
      at::topk(by_group.masked_fill(out.unsqueeze(2), -1).view(p.sizes()), options.top_k, 1);
  return {ids, weights};
}

// The auction of routing/auction.h, all experts that lack tokens at once.
at::Tensor plain_auction(const at::Tensor& h) {
  const at::Tensor scores = h.t().contiguous().to(at::kDouble);  // [E,T]
  const std::int64_t experts = scores.size(0), tokens = scores.size(1), places = tokens / experts;
  const double step = std::max((scores.max() - scores.min()).item<double>() / 50, 1e-4);
  at::Tensor price = at::zeros({tokens}, at::kDouble), holder = at::full({tokens}, -1, at::kLong);
  while ((holder < 0).any().item<bool>()) {
    at::Tensor bids = at::zeros_like(scores);
    for (std::int64_t e = 0; e < experts; ++e) {
      const at::Tensor mine = holder == e;
      const std::int64_t lacks = places - mine.sum().item<std::int64_t>();
      if (lacks == 0) continue;
      const auto [values, at_tokens] = at::topk((scores[e] - price).masked_fill(mine, -INFINITY), lacks + 1);
      bids[e].scatter_(0, at_tokens.narrow(0, 0, lacks), values.narrow(0, 0, lacks) - values[lacks] + step);
    }
    const auto [amount, bidder] = bids.max(0);
    holder = at::where(amount > 0, bidder, holder);
    price = price + amount;
  }
  return holder.unsqueeze(1);
}

Chosen plain_expert_choice(const GateOptions& options, const at::Tensor& p) {
  // As the layer needs it below, a mask of [T,E] instead of lists.
  const auto best = std::get<1>(at::topk(p, expert_capacity(options, p.size(0)), 0));
  const at::Tensor taken = at::zeros(p.sizes(), at::kBool).scatter_(0, best, true);
  return {at::where(taken, at::arange(p.size(1)).unsqueeze(0), -1), p};
}

Chosen plain_choices(const GateOptions& options, const at::Tensor& h) {
  const std::string& name = options.name;
  if (name == "top_k" && options.score == ScoreKind::kSigmoid) return plain_groups(options, h);
  if (name == "base") {
    const at::Tensor ids = plain_auction(h);
    return {ids, at::sigmoid(h.gather(1, ids))};
  }
  if (name == "k_top_1") {
    const at::Tensor by_prototype = at::softmax(h.view({h.size(0), options.top_k, -1}), 2);
    const auto [weights, best] = by_prototype.max(2);
    const at::Tensor first = at::arange(options.top_k) * by_prototype.size(2);
    return {within_capacity(options, best + first), weights};
  }
  const at::Tensor p = at::softmax(h, 1);
  if (name == "expert_choice") return plain_expert_choice(options, p);
  if (name == "dense_to_sparse") {
    const at::Tensor kept = at::logical_or(p > options.threshold, p == std::get<0>(p.max(1, true)));
    return {at::where(kept, at::arange(p.size(1)).unsqueeze(0), -1), p};
  }
  if (name == "sam") {
    const Chosen chosen = plain_sam(options, p);
    return {within_capacity(options, chosen.ids), chosen.weights};
  }
  const auto [weights, ids] = at::topk(p, options.top_k, 1);
  return {within_capacity(options, ids), name == "gshard" ? weights / weights.sum(1, true) : weights};
}

at::Tensor plain_there_and_back(const Chosen& chosen, const at::Tensor& x) {
  const at::Tensor flat = chosen.ids.reshape({-1}), kept = at::nonzero(flat >= 0).squeeze(1);
  const at::Tensor slots = kept.index_select(0, at::argsort(flat.index_select(0, kept), /*stable=*/true));
  const at::Tensor token = at::floor_divide(slots, chosen.ids.size(1));
  const at::Tensor rows = x.index_select(0, token);  // in the order of experts
  const at::Tensor weight = chosen.weights.reshape({-1}).index_select(0, slots);
  return at::zeros_like(x).index_add_(0, token, rows * weight.unsqueeze(1));
}

// ---- ours ----

class Layer {
 public:
  Layer(const GateOptions& options, const Shape& shape)
      : transport_(std::move(make_inproc_transports(1).front())),
        world_(*transport_, Topology::one_node(1), std::chrono::minutes(1)) {
    config_.num_layers = 1;
    config_.d_model = shape.width;
    config_.vocab_size = kVocab;
    config_.moe.gate = options;
    at::manual_seed(7);
    x_ = at::randn({shape.num_tokens, shape.width});
    router_ = at::randn({shape.num_experts, shape.width}) * 0.05;
    token_ids_ = at::randint(kVocab, {shape.num_tokens}, at::kLong);
    states_ = first_gate_states(config_, 1, std::vector<std::int64_t>(kVocab, 1));
    if (!has_router()) table_ = at::tensor(states_.layers[0]).to(at::kLong);
    rows_ = at::empty({shape.num_tokens * shape.num_experts, shape.width});
    y_ = at::empty_like(x_);
  }

  void run() {
    const at::NoGradGuard no_grad;
    StepContext context;
    context.training = config_.moe.gate.name == "base";  // which else only takes the best
    context.world = &world_;
    context.stats.resize(1);
    context.step = 1000;
    context.gate_state = states_.layers;
    context.token_ids.assign(token_ids_.const_data_ptr<std::int64_t>(),
                             token_ids_.const_data_ptr<std::int64_t>() + token_ids_.numel());
    routing_ = route(config_, 0, x_, has_router() ? router_ : at::Tensor(), x_.size(0), context);
    there_and_back(routing_.plan);
  }

  void run_plain() {
    const at::NoGradGuard no_grad;
    if (!has_router()) {
      const at::Tensor ids =
          within_capacity(config_.moe.gate, table_.index_select(0, token_ids_).unsqueeze(1));
      plain_y_ = plain_there_and_back({ids, at::ones(ids.sizes())}, x_);
      return;
    }
    plain_ = plain_choices(config_.moe.gate, at::linear(x_, router_));
    plain_y_ = plain_there_and_back(plain_, x_);
  }

  std::string check() {
    y_.fill_(NAN);
    run();
    run_plain();
    if (config_.moe.gate.name == "base") return check_sums();
    const double difference = (y_ - plain_y_).abs().max().item<double>();
    return difference <= 1e-5 ? "" : fmt::format("an output differs by {}", difference);
  }

 private:
  bool has_router() const { return gate_named(config_.moe.gate.name).has_router; }

  // Both are as good as the auction promises; which tokens are shuffled where is not the same.
  std::string check_sums() const {
    const at::Tensor h = at::linear(x_, router_);
    const at::Tensor ours = at::tensor(routing_.plan.expert_ids, at::kLong).unsqueeze(1);
    const auto sum = [&](const at::Tensor& ids) { return h.gather(1, ids).sum().item<double>(); };
    const std::span<const float> scores(h.const_data_ptr<float>(), static_cast<std::size_t>(h.numel()));
    const double allowed = static_cast<double>(h.size(0)) * auction_step(scores);
    const double difference = std::abs(sum(ours) - sum(plain_.ids));
    return difference <= allowed ? "" : fmt::format("sums differ by {}, allowed {}", difference, allowed);
  }

  void there_and_back(const RoutingPlan& plan) {
    slot_begin_.assign(1, 0);
    expert_.clear();
    weight_.clear();
    for (std::size_t i = 0; i < plan.expert_ids.size();) {
      for (std::int64_t k = 0; k < plan.num_choices; ++k, ++i) {
        if (plan.expert_ids[i] < 0) continue;
        expert_.push_back(plan.expert_ids[i]);
        weight_.push_back(plan.weights[i]);
      }
      slot_begin_.push_back(std::ssize(expert_));
    }
    const std::int64_t slots = std::ssize(expert_), experts = plan.num_experts;
    position_.resize(expert_.size());
    expert_begin_.resize(static_cast<std::size_t>(experts) + 1);
    kernels::counting_permute(expert_.data(), slots, experts, expert_begin_.data(), position_.data());
    kernels::permute_rows(DType::kF32, x_.const_data_ptr(), slot_begin_.data(), position_.data(), x_.size(0),
                          x_.size(1), rows_.mutable_data_ptr());
    kernels::ordered_weighted_sum(DType::kF32, rows_.const_data_ptr(), slot_begin_.data(), position_.data(),
                                  weight_.data(), x_.size(0), x_.size(1), DType::kF32, y_.mutable_data_ptr());
  }

  std::unique_ptr<Transport> transport_;
  Communicator world_;
  ModelConfig config_;
  GateStates states_;
  at::Tensor x_, router_, token_ids_, table_, rows_, y_, plain_y_;
  Routing routing_;
  Chosen plain_;
  std::vector<std::int64_t> slot_begin_, position_, expert_begin_;
  std::vector<std::int32_t> expert_;
  std::vector<float> weight_;
};

void measure(Report& report, const std::string& name, const GateOptions& options, const Shape& shape) {
  Layer layer(options, shape);
  const double row = static_cast<double>(shape.width) * sizeof(float);
  report.measure(
      {.name = fmt::format("{} {}x{} {} experts", name, shape.num_tokens, shape.width, shape.num_experts),
       .work = {.bytes = 2.0 * static_cast<double>(shape.num_tokens * options.top_k) * row},
       .run = [&] { layer.run(); },
       .baseline = "pytorch",
       .run_baseline = [&] { layer.run_plain(); },
       .ratio = "time_over_pytorch",
       .check = [&] { return layer.check(); }});
}

void run(Report& report, const std::string& size) {
  at::set_num_threads(1);
  const Shape shape = size == "tiny" ? Shape{64, 32, 8} : Shape{4096, 512, 16};
  for (const std::string& name : gate_names()) {
    const Gate& gate = gate_named(name);
    GateOptions options;
    options.name = name;
    options.num_experts = shape.num_experts;
    options.top_k = gate.top_k == 0 ? 2 : gate.top_k;
    if (gate.capacity != Gate::Capacity::kNone && name != "top_k") options.capacity_factor = 1.0;
    if (name == "sam") options.num_groups = 4;
    if (name == "dense_to_sparse") {
      options.threshold = 0.1;
      options.last_temperature = 1.0;  // plain softmax
    }
    measure(report, name, options, shape);
    if (name != "top_k") continue;
    options.score = ScoreKind::kSigmoid;
    options.normalise = Normalise::kBeforeDrop;
    options.num_groups = 4;
    options.kept_groups = 2;
    measure(report, "top_k of groups", options, shape);
  }
}

}  // namespace

Benchmark gates() {
  return {"gates",
          "every gate with the layout transform and its inverse, one thread, against plain PyTorch",
          1,
          {"full", "tiny"},
          run};
}

}  // namespace moesaic::bench
