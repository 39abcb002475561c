#include "moesaic/nn/moe_experts.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "moesaic/core/error.h"
#include "moesaic/exchange/moving_rows.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/expert_chunks.h"

namespace moesaic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

ConstRows const_rows(const at::Tensor& t) {
  return {t.data_ptr(), compute_dtype("rows", t), t.size(0), t.size(1)};
}

// Slots of every token, also of those without an expert: in a group of one the tokens are the rows.
std::vector<std::int64_t> token_begins(const DispatchHandle& handle) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(handle.num_tokens) + 1, 0);
  for (std::size_t i = 0; i < handle.sent_token.size(); ++i) {
    begins[static_cast<std::size_t>(handle.sent_token[i]) + 1] =
        handle.slot_begin[i + 1] - handle.slot_begin[i];
  }
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  return begins;
}

// What forward leaves for backward.
struct Saved : torch::CustomClassHolder {
  Communicator* group = nullptr;
  DispatchHandle handle;
  ProductKind kind = ProductKind::kPanels;
  std::optional<DType> wire;  // of sums; none: the rows'
  bool background = false;    // rows move while this thread computes
  Buffer rows;                // [R,D]; empty in a group of one, where x itself is the rows
  // By chunk.
  std::vector<ExpertInput> inputs;
  std::vector<at::Tensor> before;   // pre-activations
  std::vector<at::Tensor> outputs;  // [slots of the chunk, D]

  // Of a backward pass under way. Last: what moves is over before what it reads goes.
  Buffer g_rows;
  std::optional<MovingRows> moving;

  bool alone() const { return group->size() == 1; }
  void send_gradients(const at::Tensor& g) {
    const Span span(group->tracer(), {.phase = Phase::kExchange, .name = "dispatch_again"});
    moving = start_rows(*group, handle, const_rows(g), g_rows, background);
  }
};

// Adds the slots of each chunk's rows up and sends the sums home.
class Home {
 public:
  Home(const Saved& saved, const at::Tensor& like, std::int64_t width)
      : saved_(saved), sums_(*saved.group, saved.handle, saved.background) {
    if (!saved.alone())
      home_ = at::empty({saved.handle.num_tokens, width}, like.options().requires_grad(false));
  }
  void send(std::size_t chunk, const at::Tensor& slots, bool weighted) {
    const ExpertInput& input = saved_.inputs[chunk];
    kept_.push_back(sum_slots(input, slots, weighted, saved_.wire.value_or(input.shape.dtype)));
    if (!saved_.alone()) sums_.start(const_rows(kept_.back()));
  }
  at::Tensor finish() {
    if (saved_.alone()) return kept_.front();
    const ConstRows shape = const_rows(home_);
    sums_.finish({home_.data_ptr(), shape.dtype, shape.num_rows, shape.width});
    return home_;
  }

 private:
  const Saved& saved_;
  std::vector<at::Tensor> kept_;
  at::Tensor home_;
  MovingSums sums_;  // last: reads kept_
};

// Arguments that autograd has nothing to do with.
struct Call {
  const ExpertRoute& route;
  Activation activation;
  const RoutingPlan& plan;
  std::optional<Route>* taken;
  const std::function<void()>& meanwhile;
  bool keep;
  c10::intrusive_ptr<Saved> saved;
};

// The first half of forward: rows are under way, or, in the foreground, there.
MovingRows send_rows(const Call& call, const at::Tensor& x, const at::Tensor& weights,
                     std::int64_t library_from) {
  Saved& saved = *call.saved;
  saved.group = call.route.group;
  RoutingPlan weighted = call.plan;
  std::copy_n(weights.data_ptr<float>(), weights.numel(), weighted.weights.begin());
  if (saved.alone()) {
    saved.handle = plan_dispatch(*saved.group, weighted, *call.route.placement, /*bytes_per_row=*/0);
    return {};
  }
  const Span span(saved.group->tracer(), {.phase = Phase::kExchange, .name = "dispatch"});
  DispatchOptions options = call.route.dispatch;
  options.uncut_slots = library_from;
  if (call.route.fp32_sums) {
    saved.wire = DType::kF32;
    options.bytes_per_sum = x.size(1) * size_of(*saved.wire);
  }
  saved.handle = plan_dispatch(*saved.group, weighted, *call.route.placement,
                               x.size(1) * static_cast<std::int64_t>(x.element_size()), options);
  if (call.taken != nullptr) *call.taken = saved.handle.route;
  saved.background = call.route.overlap && (saved.handle.chunks.size() > 1 || call.meanwhile);
  return start_rows(*saved.group, saved.handle, const_rows(x), saved.rows, saved.background);
}

ExpertInput input_of(const Saved& saved, const kernels::ExpertShape& shape, std::size_t chunk) {
  if (!saved.alone()) return input_of_chunk(shape, saved.handle, chunk);
  return expert_input(shape, token_begins(saved.handle), saved.handle.slot_expert, saved.handle.slot_weight);
}

const void* rows_of_chunk(const DispatchHandle& handle, std::size_t chunk, const Buffer& rows,
                          const kernels::ExpertShape& shape) {
  return rows.data() + handle.chunks[chunk].first_row * shape.width * size_of(shape.dtype);
}

struct Experts : torch::autograd::Function<Experts> {
  static at::Tensor forward(AutogradContext* context, const Call& call, const at::Tensor& x,
                            const at::Tensor& weights, const at::Tensor& w_in, const at::Tensor& w_out) {
    Saved& saved = *call.saved;
    const std::int64_t library_from = library_slots(w_in.size(0), has_wide_vectors(), call.route.only_panels);
    MovingRows moving = send_rows(call, x, weights, library_from);
    if (call.meanwhile) call.meanwhile();
    const kernels::ExpertShape shape{const_rows(x).dtype, call.activation == Activation::kSwiGlu,
                                     w_in.size(0), x.size(1), w_out.size(2)};
    if (saved.handle.num_slots() >= library_from) saved.kind = ProductKind::kLibrary;
    Home home(saved, x, x.size(1));
    for (std::size_t c = 0; c < saved.handle.chunks.size(); ++c) {
      saved.inputs.push_back(input_of(saved, shape, c));
      moving.wait(c);
      ExpertForward products =
          experts_forward(saved.kind, saved.inputs[c],
                          saved.alone() ? x.data_ptr() : rows_of_chunk(saved.handle, c, saved.rows, shape),
                          w_in, w_out, call.keep);
      home.send(c, products.outputs, /*weighted=*/true);
      if (!call.keep) continue;
      saved.before.push_back(products.before);
      saved.outputs.push_back(products.outputs);
    }
    at::Tensor y = home.finish();
    if (!call.keep) return y;
    context->save_for_backward(saved.alone() ? variable_list{w_in, w_out, x} : variable_list{w_in, w_out});
    context->saved_data["saved"] = c10::IValue::make_capsule(call.saved);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["saved"].toCapsule();
    Saved& saved = static_cast<Saved&>(*capsule);
    const variable_list tensors = context->get_saved_variables();
    const at::Tensor &w_in = tensors[0], &w_out = tensors[1];
    const at::Tensor g = gradients[0].contiguous();
    if (!saved.alone() && !saved.moving) saved.send_gradients(g);
    const void* g_data = saved.alone() ? g.data_ptr() : saved.g_rows.data();
    const void* rows = saved.alone() ? tensors[2].data_ptr() : saved.rows.data();
    const bool whole = saved.inputs.size() == 1;
    Result result = (whole ? backward_whole : backward_in_chunks)(saved, g_data, rows, w_in, w_out);
    saved.moving.reset();
    saved.g_rows = Buffer();
    return {{}, result.d_x, result.d_weights, result.products.d_w_in, result.products.d_w_out};
  }

 private:
  struct Result {
    at::Tensor d_x, d_weights;
    ExpertBackward products;
  };

  static at::Tensor finish(const Saved& saved, MovingValues& values) {
    at::Tensor home = at::empty({saved.handle.num_tokens, saved.handle.num_choices}, at::kFloat);
    values.finish({home.data_ptr<float>(), static_cast<std::size_t>(home.numel())});
    return home;
  }

  static Result backward_whole(Saved& saved, const void* g, const void* rows, const at::Tensor& w_in,
                               const at::Tensor& w_out) {
    const ExpertInput& input = saved.inputs.front();
    if (saved.moving) saved.moving->wait(0);
    MovingValues values(*saved.group, saved.handle, slot_gradients(input, g, saved.outputs.front()),
                        saved.background);
    Home home(saved, w_in, input.shape.width);
    Result result;
    result.products = experts_backward(saved.kind, input, g, rows, saved.before.front(), w_in, w_out);
    home.send(0, result.products.d_inputs, /*weighted=*/false);
    result.d_x = home.finish();
    result.d_weights = finish(saved, values);
    return result;
  }

  static Result backward_in_chunks(Saved& saved, const void* g, const void* rows, const at::Tensor& w_in,
                                   const at::Tensor& w_out) {
    const DispatchHandle& handle = saved.handle;
    const kernels::ExpertShape& shape = saved.inputs.front().shape;
    const at::TensorOptions options = w_in.options().requires_grad(false);
    const at::Tensor h = at::empty({handle.num_slots(), shape.expert_width}, options),
                     d_before = at::empty({handle.num_slots(), shape.hidden_width()}, options);
    std::vector<float> d_weights(static_cast<std::size_t>(handle.num_slots()));
    Home home(saved, w_in, shape.width);
    std::int64_t done = 0;
    for (std::size_t c = 0; c < handle.chunks.size(); ++c) {
      const ExpertInput& input = saved.inputs[c];
      saved.moving->wait(c);
      const void* g_chunk = rows_of_chunk(handle, c, saved.g_rows, shape);
      put_slot_values(handle, c, slot_gradients(input, g_chunk, saved.outputs[c]), d_weights);
      home.send(c,
                experts_backward_slots(input, g_chunk, saved.before[c], w_in, w_out,
                                       h.narrow(0, done, input.num_slots()),
                                       d_before.narrow(0, done, input.num_slots())),
                /*weighted=*/false);
      done += input.num_slots();
    }
    MovingValues values(*saved.group, handle, std::move(d_weights), saved.background);
    const AllSlots all = slots_of_all_chunks(shape, handle, saved.inputs);
    Result result;
    result.products = experts_backward_weights(all.input, all.place, g, rows, h, d_before, w_in, w_out);
    result.d_x = home.finish();
    result.d_weights = finish(saved, values);
    return result;
  }
};

// y itself. Autograd runs later nodes first: so backward comes through here before it comes to what
// `meanwhile` did, and to Experts after that.
struct GradientsFirst : torch::autograd::Function<GradientsFirst> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y,
                            const c10::intrusive_ptr<Saved>& saved) {
    context->saved_data["saved"] = c10::IValue::make_capsule(saved);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["saved"].toCapsule();
    const at::Tensor g = gradients[0].contiguous();
    static_cast<Saved&>(*capsule).send_gradients(g);
    return {g, {}};
  }
};

}  // namespace

at::Tensor moe_experts(const ExpertRoute& route, Activation activation, const RoutingPlan& plan,
                       const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w_in,
                       const at::Tensor& w_out, std::optional<Route>* taken,
                       const std::function<void()>& meanwhile) {
  require(route.group != nullptr && route.placement != nullptr, "MoE layer: its expert route is not set");
  const auto num_experts = static_cast<std::int64_t>(route.placement->experts_of(route.group->rank()).size());
  require(w_out.defined() && w_out.dim() == 3, "experts.down_proj: expected [experts, d_model, d_expert]");
  const std::int64_t width = x.size(1), expert_width = w_out.size(2);
  require_shape("experts.down_proj", w_out, {num_experts, width, expert_width});
  require_shape("experts.gate_up_proj", w_in,
                {num_experts, activation == Activation::kSwiGlu ? 2 * expert_width : expert_width, width});
  require_shape("routing weights", weights, {plan.num_tokens, plan.num_choices});
  require(w_in.scalar_type() == x.scalar_type() && w_out.scalar_type() == x.scalar_type(),
          "MoE layer: input is {}, gate_up {}, down {}: expected one dtype", c10::toString(x.scalar_type()),
          c10::toString(w_in.scalar_type()), c10::toString(w_out.scalar_type()));
  const bool keep = at::GradMode::is_enabled() && (x.requires_grad() || weights.requires_grad() ||
                                                   w_in.requires_grad() || w_out.requires_grad());
  // Functions run without a graph.
  std::function<void()> as_outside;
  if (meanwhile) {
    as_outside = [&meanwhile, with_graph = at::GradMode::is_enabled()] {
      const at::AutoGradMode mode(with_graph);
      meanwhile();
    };
  }
  const Call call{route, activation, plan, taken, as_outside, keep, c10::make_intrusive<Saved>()};
  const at::Tensor y =
      Experts::apply(call, x.contiguous(), weights.contiguous(), w_in.contiguous(), w_out.contiguous());
  return keep && meanwhile && call.saved->background ? GradientsFirst::apply(y, call.saved) : y;
}

}  // namespace moesaic
