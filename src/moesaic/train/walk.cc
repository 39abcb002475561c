#include "moesaic/train/walk.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

namespace moesaic {
namespace {

SpanInfo span_of(Phase phase, const StageSpec& stage) {
  switch (stage.kind) {
    case StageKind::kEmbed:
      return {.phase = phase, .name = "embedding"};
    case StageKind::kLayer:
      return {.phase = phase, .name = "layer", .index = stage.layer};
    case StageKind::kHead:
      break;
  }
  return {.phase = phase, .name = "head"};
}

// Runs every stage but the head without a graph; the head's parameters are gathered on return, not released.
at::Tensor forward_to_head(ShardedModel& model, const at::Tensor& tokens, StepContext& context,
                           std::vector<UnitTensors>& head_units) {
  const auto stages = model.stages();
  at::Tensor x = tokens;
  for (int i = 0;; ++i) {
    std::vector<UnitTensors> units = model.acquire(i);
    model.prefetch(i + 1);
    if (stages[static_cast<std::size_t>(i)].kind == StageKind::kHead) {
      head_units = std::move(units);
      return x;
    }
    const StageSpec& stage = stages[static_cast<std::size_t>(i)];
    {
      const Span span(model.world().tracer(), span_of(Phase::kForward, stage));
      x = run_stage(model.config(), stage, units, x, context).value;
    }
    model.release(i);
  }
}

}  // namespace

StepContext base_context(const ShardedModel& model, const GateStates& gates) {
  StepContext context;
  context.training = false;
  context.world = &model.world();
  context.routes = model.routes();
  context.step = gates.step;
  context.gate_state = gates.layers;
  context.stats.resize(static_cast<std::size_t>(model.config().num_layers));
  return context;
}

double train_micro_step(ShardedModel& model, const at::Tensor& tokens, const at::Tensor& targets, bool first,
                        StepContext& context, const RecomputedLayers& recomputed) {
  const auto stages = model.stages();
  const auto computed_again = [&](const StageSpec& stage) {
    return stage.kind == StageKind::kLayer && !recomputed.empty() &&
           recomputed.at(static_cast<std::size_t>(stage.layer));
  };
  const int last = static_cast<int>(stages.size()) - 1;
  std::vector<at::Tensor> inputs(stages.size());
  std::vector<StageOutput> outputs(stages.size());

  for (int i = 0; i <= last; ++i) {
    const auto at_i = static_cast<std::size_t>(i);
    const std::vector<UnitTensors> units = model.acquire(i);
    model.prefetch(i + 1);
    if (i == 0) {
      inputs[at_i] = tokens;
    } else {
      // A leaf of its own graph: autograd stops here, and the walk carries the gradient over.
      inputs[at_i] = outputs[at_i - 1].value.detach().requires_grad_(true);
    }
    context.keep_routing = computed_again(stages[at_i]);
    {
      const Span span(model.world().tracer(), span_of(Phase::kForward, stages[at_i]));
      const at::AutoGradMode with_graph(!context.keep_routing);
      outputs[at_i] =
          stages[at_i].kind == StageKind::kHead
              ? run_head_with_loss(model.config(), stages[at_i], units, inputs[at_i], targets, context)
              : run_stage(model.config(), stages[at_i], units, inputs[at_i], context);
    }
    if (i != last) model.release(i);  // the head's backward comes next
  }
  const double loss = outputs.back().value.item<double>();

  at::Tensor gradient = at::ones_like(outputs.back().value);
  for (int i = last; i >= 0; --i) {
    const auto at_i = static_cast<std::size_t>(i);
    const std::vector<UnitTensors> units = model.acquire(i);
    model.prefetch(i - 1);
    if (computed_again(stages[at_i])) {
      const Span span(model.world().tracer(), span_of(Phase::kRecompute, stages[at_i]));
      outputs[at_i] = run_stage(model.config(), stages[at_i], units, inputs[at_i], context);
      const auto layer = static_cast<std::size_t>(stages[at_i].layer);
      if (layer < context.kept_routing.size()) context.kept_routing[layer].reset();
    }
    std::vector<at::Tensor> roots, root_gradients;
    const auto add_root = [&](const at::Tensor& root, const at::Tensor& root_gradient) {
      if (!root.defined() || !root.requires_grad()) return;
      roots.push_back(root);
      root_gradients.push_back(root_gradient);
    };
    add_root(outputs[at_i].value, gradient);
    if (outputs[at_i].auxiliary.defined()) {
      add_root(outputs[at_i].auxiliary, at::ones_like(outputs[at_i].auxiliary));
    }
    {
      const Span span(model.world().tracer(), span_of(Phase::kBackward, stages[at_i]));
      torch::autograd::backward(roots, root_gradients);
    }
    if (i > 0) {
      gradient = inputs[at_i].grad();
      if (!gradient.defined()) gradient = at::zeros_like(inputs[at_i]);
    }
    roots.clear();
    outputs[at_i] = StageOutput{};
    inputs[at_i] = at::Tensor();
    model.reduce(i);
    model.release(i);
  }
  model.finish_reduce(first);
  return loss;
}

double evaluate_micro_step(ShardedModel& model, const at::Tensor& tokens, const at::Tensor& targets,
                           StepContext& context) {
  const at::NoGradGuard no_grad;
  std::vector<UnitTensors> units;
  const at::Tensor hidden = forward_to_head(model, tokens, context, units);
  const int head = static_cast<int>(model.stages().size()) - 1;
  double loss = 0;
  {
    const Span span(model.world().tracer(), span_of(Phase::kForward, model.stages().back()));
    loss = run_head_with_loss(model.config(), model.stages().back(), units, hidden, targets, context)
               .value.item<double>();
  }
  model.release(head);
  return loss;
}

at::Tensor forward_logits(ShardedModel& model, const at::Tensor& tokens, StepContext& context,
                          const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  std::vector<UnitTensors> units;
  at::Tensor hidden = forward_to_head(model, tokens, context, units);
  if (rows.defined()) hidden = hidden.flatten(0, 1).index_select(0, rows).unsqueeze(0);
  const int head = static_cast<int>(model.stages().size()) - 1;
  at::Tensor logits;
  {
    const Span span(model.world().tracer(), span_of(Phase::kForward, model.stages().back()));
    logits = run_stage(model.config(), model.stages().back(), units, hidden, context).value;
  }
  model.release(head);
  return logits;
}

}  // namespace moesaic
