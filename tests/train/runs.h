// runs.h: small training runs on threads, for tests that compare layouts, restarts and checkpoints.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/comm/inproc.h"
#include "moesaic/core/rng.h"
#include "moesaic/shard/collect.h"
#include "moesaic/train/threads.h"
#include "moesaic/train/trainer.h"
#include "tests/comm/worlds.h"

namespace moesaic::testing {

// A folder of its own for one test, removed afterwards.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "moesaic-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Text with some structure: words of a small vocabulary in random order.
inline std::filesystem::path write_text(const std::filesystem::path& folder) {
  static const std::vector<std::string> words = {"the ", "sea ", "was ",  "calm ",
                                                 "and ", "no ",  "wind ", "blew. "};
  const std::filesystem::path file = folder / "text.txt";
  std::ofstream out(file);
  for (std::uint64_t i = 0; i < 2000; ++i) out << words[random_bits(7, i) % words.size()];
  return file;
}

// 8 sequences of 16 tokens; capacity 1.0 drops choices; SGD with clipping shows wrong gradient scales, which
// AdamW would hide.
inline Config small_config(const std::filesystem::path& text) {
  Config config;
  config.model.vocab_size = 256;
  config.model.num_layers = 2;
  config.model.d_model = 32;
  config.model.num_heads = 2;
  config.model.max_seq_len = 16;
  config.model.init_std = 0.1;
  config.model.moe.d_expert = 16;
  config.model.moe.gate.num_experts = 6;
  config.model.moe.gate.top_k = 2;
  config.model.moe.gate.normalise = Normalise::kBeforeDrop;
  config.model.moe.gate.capacity_factor = 1.0;
  config.data.files = {text.string()};
  config.data.seq_len = 16;
  config.train.batch_tokens = 128;
  config.train.steps = 20;
  config.optim.name = OptimizerKind::kSgd;
  config.optim.lr = 0.5;
  config.optim.momentum = 0.9;
  config.optim.clip_norm = 0.5;
  config.optim.schedule = LrSchedule::kConstant;
  return config;
}

struct Layout {
  std::string name;
  int ranks = 1;
  std::vector<std::string> experts = {"gather"};
  int exchange_size = 0;
  int ranks_per_node = 0;  // 0 = one node
};

inline Config with_layout(Config config, const Layout& layout) {
  config.parallel.ranks = layout.ranks;
  config.parallel.experts = layout.experts;
  config.parallel.exchange_size = layout.exchange_size;
  config.comm.ranks_per_node = layout.ranks_per_node;
  return config;
}

// Runs body(trainer) on every rank of the layout.
inline void on_ranks(const Config& config, const std::function<void(Trainer&)>& body) {
  const auto ranks = static_cast<int>(config.parallel.ranks);
  const auto per_node = static_cast<int>(config.comm.ranks_per_node);
  const Topology topology = per_node > 0 ? Topology::uniform(ranks, per_node) : Topology::one_node(ranks);
  run_world(topology, [&](Communicator& world) {
    limit_compute_threads(1);
    Trainer trainer(config, world);
    body(trainer);
  });
}

// Whole tensors, brought together from all ranks. Thread-safe.
class TensorCollection {
 public:
  // Collective. state(unit) = this rank's shard of what to collect.
  void collect(Trainer& trainer, const std::function<std::span<float>(ShardedUnit&)>& state) {
    auto& units = trainer.model().units();
    for (std::size_t u = 0; u < units.size(); ++u) {
      const UnitLayout& layout = units[u]->layout();
      const Buffer block = collect_block(trainer.world(), layout, static_cast<int>(u), state(*units[u]));
      const auto index = block_written_by(layout, static_cast<int>(u), trainer.world().rank());
      if (!index) continue;
      const std::lock_guard lock(mutex_);
      for (const Segment& segment : layout.block_segments(*index)) {
        const float* at = block.as<float>() + segment.offset;
        tensors_[segment.tensor->name].assign(at, at + segment.count);
      }
    }
  }
  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
};

using Tensors = std::map<std::string, std::vector<float>>;

struct Outcome {
  Tensors gradients;   // after the first step, before clipping
  Tensors parameters;  // after the last
  std::vector<StepReport> steps;
};

// Trains from scratch.
inline Outcome train(const Config& config, std::int64_t steps) {
  TensorCollection gradients, parameters;
  Outcome outcome;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
    for (std::int64_t i = 0; i < steps; ++i) {
      const StepReport report = trainer.step();
      if (trainer.world().rank() == 0) outcome.steps.push_back(report);
      if (i == 0) gradients.collect(trainer, [](ShardedUnit& unit) { return unit.gradient(); });
    }
    parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
  });
  outcome.gradients = gradients.tensors();
  outcome.parameters = parameters.tensors();
  return outcome;
}

inline float largest(const std::vector<float>& values) {
  float most = 0;
  for (const float v : values) most = std::max(most, std::abs(v));
  return most;
}

// max|a - b| <= tolerance * max|a| for every tensor.
inline void expect_close(const Tensors& a, const Tensors& b, float tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const auto& others = b.at(name);
    ASSERT_EQ(values.size(), others.size()) << name;
    float worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - others[i]));
    EXPECT_LE(worst, tolerance * largest(values)) << name << ", largest " << largest(values);
  }
}

inline void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.parameters, b.parameters);
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(a.steps[i].gradient_norm, b.steps[i].gradient_norm) << "step " << i + 1;
  }
}

}  // namespace moesaic::testing
