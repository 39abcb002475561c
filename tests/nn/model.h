// model.h: a small model for tests: parameters, one training pass as the trainer makes it, and a plain fp64
// oracle.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "moesaic/core/rng.h"
#include "moesaic/nn/gate_states.h"
#include "moesaic/nn/params.h"
#include "moesaic/nn/stage.h"
#include "tests/comm/worlds.h"

namespace moesaic::testing {

inline at::Tensor normal(at::IntArrayRef shape, const std::string& name, double scale = 1.0) {
  at::Tensor t = at::empty(shape, at::kFloat);
  const std::uint64_t key = random_key(7, name);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    t.data_ptr<float>()[i] = static_cast<float>(scale) * random_normal(key, static_cast<std::uint64_t>(i));
  }
  return t;
}

inline at::Tensor token_ids(std::int64_t sequences, std::int64_t positions, std::int64_t vocab_size) {
  at::Tensor ids = at::empty({sequences, positions}, at::kLong);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    ids.data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(random_bits(random_key(7, "ids"), static_cast<std::uint64_t>(i)) %
                                  static_cast<std::uint64_t>(vocab_size));
  }
  return ids;
}

// Parameters of one unit as run_stage takes them; norms away from one, so that they matter.
inline UnitTensors parameters(const UnitSpec& unit, std::span<const int> experts, at::ScalarType dtype) {
  const auto draw = [](const TensorSpec& spec) {
    at::Tensor t = at::empty(spec.shape, at::kFloat);
    initialise(spec, 11, 0, spec.numel(), t.data_ptr<float>());
    return spec.init == Init::kOnes ? t + normal(spec.shape, spec.name, 0.1) : t;
  };
  UnitTensors tensors;
  if (unit.kind == UnitKind::kDense) {
    for (const TensorSpec& spec : unit.tensors) tensors.push_back(draw(spec));
  } else {
    std::vector<at::Tensor> stacked;
    for (const int e : experts) {
      std::vector<at::Tensor> parts;
      for (std::int64_t i = 0; i < unit.per_expert(); ++i) {
        parts.push_back(draw(unit.tensors[static_cast<std::size_t>(e * unit.per_expert() + i)]));
      }
      stacked.push_back(at::cat(parts, 0));
    }
    tensors.push_back(at::stack(stacked));
  }
  for (at::Tensor& t : tensors) t = t.to(unit.keep_fp32 ? at::kFloat : dtype).contiguous().requires_grad_();
  return tensors;
}

// What a rank holds of one micro-step.
struct Batch {
  at::Tensor ids, targets;         // [B,S]
  std::vector<std::uint8_t> mask;  // [B*S] or empty
  std::int64_t first_sequence = 0;
  Batch part(std::int64_t begin, std::int64_t count) const {
    Batch b{ids.narrow(0, begin, count), targets.narrow(0, begin, count), {}, first_sequence + begin};
    const std::int64_t s = ids.size(1);
    if (!mask.empty()) b.mask.assign(mask.begin() + begin * s, mask.begin() + (begin + count) * s);
    return b;
  }
  std::int64_t routed() const { return mask.empty() ? ids.numel() : std::count(mask.begin(), mask.end(), 1); }
};

inline Batch batch_of(const ModelConfig& config, std::int64_t sequences, std::int64_t positions) {
  Batch batch;
  batch.ids = token_ids(sequences, positions, config.vocab_size);
  batch.targets = at::remainder(batch.ids * 3 + 1, config.vocab_size);
  if (batch.targets.numel() > 2) batch.targets.view(-1)[1] = -1;
  return batch;
}

struct Pass {
  double loss = 0.0, auxiliary = 0.0;
  at::Tensor hidden;                            // before the head
  std::map<std::string, at::Tensor> gradients;  // unit name / index; experts in full, zero where not owned
  std::vector<LayerStats> stats;
  void add(const Pass& other) {
    loss += other.loss;
    auxiliary += other.auxiliary;
    for (const auto& [name, g] : other.gradients) {
      auto [at_name, is_new] = gradients.try_emplace(name, g.clone());
      if (!is_new) at_name->second += g;
    }
    for (std::size_t l = 0; l < stats.size() && l < other.stats.size(); ++l) {
      stats[l].dropped += other.stats[l].dropped;
      stats[l].dropped_random += other.stats[l].dropped_random;
      stats[l].z_loss += other.stats[l].z_loss;
    }
    if (stats.empty()) stats = other.stats;
  }
};

struct PassOptions {
  at::ScalarType dtype = at::kFloat;
  bool training = true;
  std::int64_t step_tokens = 0, step_targets = 0;
  std::int64_t step = 3;
  // Changes parameters before use: unit name and tensors.
  std::function<void(const std::string&, UnitTensors&)> edit;
};

// Stage by stage forward, then backward, as the trainer does; experts owned by placement over the whole
// world.
inline Pass run_pass(const ModelConfig& config, const Batch& batch, Communicator& world,
                     const PassOptions& options) {
  at::set_num_threads(1);
  const auto units = unit_specs(config);
  const auto stages = stage_specs(config);
  const auto placement =
      Placement::contiguous(static_cast<int>(config.moe.gate.num_experts), world.size(), world.size());
  const auto experts = placement.experts_of(world.rank());
  std::vector<UnitTensors> tensors;
  for (const UnitSpec& unit : units) {
    tensors.push_back(parameters(unit, experts, options.dtype));
    if (options.edit) options.edit(unit.name, tensors.back());
  }
  StepContext context;
  context.training = options.training;
  context.seed = 5;
  context.step = options.step;
  context.first_token = batch.first_sequence * batch.ids.size(1);
  context.step_tokens = options.step_tokens;
  context.step_targets = options.step_targets;
  context.mask = batch.mask;
  context.gate_state =
      first_gate_states(config, 5, std::vector<std::int64_t>(static_cast<std::size_t>(config.vocab_size), 1))
          .layers;
  context.world = &world;
  context.routes.assign(static_cast<std::size_t>(config.num_layers), {&world, &placement});
  context.stats.resize(static_cast<std::size_t>(config.num_layers));

  std::vector<at::Tensor> inputs, outputs, auxiliary;
  at::Tensor value = batch.ids;
  Pass pass;
  const at::AutoGradMode gradients_wanted(options.training);
  for (const StageSpec& stage : stages) {
    std::vector<UnitTensors> mine;
    for (const int unit : stage.units) mine.push_back(tensors[static_cast<std::size_t>(unit)]);
    const at::Tensor input =
        stage.kind == StageKind::kEmbed ? value : value.detach().requires_grad_(options.training);
    if (stage.kind == StageKind::kHead) pass.hidden = input.detach();
    const StageOutput output = stage.kind == StageKind::kHead
                                   ? run_head_with_loss(config, stage, mine, input, batch.targets, context)
                                   : run_stage(config, stage, mine, input, context);
    inputs.push_back(input);
    outputs.push_back(output.value);
    auxiliary.push_back(output.auxiliary);
    if (output.auxiliary.defined()) pass.auxiliary += output.auxiliary.item<double>();
    value = output.value;
  }
  pass.loss = value.item<double>();
  pass.stats = context.stats;
  if (!options.training) return pass;

  at::Tensor gradient = at::ones({}, at::kFloat);
  for (std::size_t i = stages.size(); i-- > 0;) {
    std::vector<at::Tensor> roots{outputs[i]}, gradients{gradient};
    if (auxiliary[i].defined()) {
      roots.push_back(auxiliary[i]);
      gradients.push_back(at::ones({}, at::kFloat));
    }
    torch::autograd::backward(roots, gradients);
    gradient = inputs[i].grad();
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (std::size_t i = 0; i < tensors[u].size(); ++i) {
      const at::Tensor& t = tensors[u][i];
      at::Tensor g = t.grad().defined() ? t.grad().to(at::kFloat) : at::zeros(t.sizes(), at::kFloat);
      if (units[u].kind == UnitKind::kExpert) {
        auto shape = g.sizes().vec();
        shape[0] = units[u].num_experts;
        at::Tensor full = at::zeros(shape, at::kFloat);
        for (std::size_t e = 0; e < experts.size(); ++e) full[experts[e]] = g[static_cast<std::int64_t>(e)];
        g = full;
      }
      pass.gradients[fmt::format("{} {}", units[u].name, i)] = g;
    }
  }
  return pass;
}

// The sum over ranks of a pass in which rank r has sequences_of_rank[r] sequences of the batch, in order.
inline Pass run_ranks(const ModelConfig& config, const Batch& batch,
                      const std::vector<std::int64_t>& sequences_of_rank, PassOptions options = {}) {
  if (options.step_tokens == 0) options.step_tokens = batch.routed();
  if (options.step_targets == 0) options.step_targets = (batch.targets >= 0).sum().item<std::int64_t>();
  const auto ranks = static_cast<int>(sequences_of_rank.size());
  std::vector<Pass> passes(sequences_of_rank.size());
  run_world(Topology::uniform(ranks, 2), [&](Communicator& world) {
    std::int64_t begin = 0;
    for (int r = 0; r < world.rank(); ++r) begin += sequences_of_rank[static_cast<std::size_t>(r)];
    const auto me = static_cast<std::size_t>(world.rank());
    passes[me] = run_pass(config, batch.part(begin, sequences_of_rank[me]), world, options);
  });
  Pass total;
  std::vector<at::Tensor> hidden;
  for (const Pass& pass : passes) {
    total.add(pass);
    hidden.push_back(pass.hidden);
  }
  total.hidden = at::cat(hidden, 0);
  return total;
}

// Runs `body` as the only rank of a world, with a context for a step of `num_tokens`.
inline void alone(const ModelConfig& config, std::int64_t num_tokens,
                  const std::function<void(StepContext&)>& body) {
  run_world(Topology::one_node(1), [&](Communicator& world) {
    at::set_num_threads(1);
    const auto placement = Placement::contiguous(static_cast<int>(config.moe.gate.num_experts), 1, 1);
    StepContext context;
    context.step_tokens = context.step_targets = num_tokens;
    context.world = &world;
    context.routes.assign(static_cast<std::size_t>(config.num_layers), {&world, &placement});
    context.stats.resize(static_cast<std::size_t>(config.num_layers));
    body(context);
  });
}

inline void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance,
                         const std::string& name) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << name;
  if (got.numel() == 0) return;
  const double scale = expected.abs().max().item<double>();
  const double difference = (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(difference, tolerance * scale)
      << name << ": largest difference " << difference << ", largest value " << scale;
}

inline void expect_same_step(const Pass& got, const Pass& expected, double tolerance = 1e-5) {
  EXPECT_NEAR(got.loss, expected.loss, 1e-5 * std::abs(expected.loss));
  EXPECT_NEAR(got.auxiliary, expected.auxiliary, 1e-5 * std::abs(expected.auxiliary));
  ASSERT_EQ(got.gradients.size(), expected.gradients.size());
  for (const auto& [name, g] : expected.gradients) expect_close(got.gradients.at(name), g, tolerance, name);
}

}  // namespace moesaic::testing
