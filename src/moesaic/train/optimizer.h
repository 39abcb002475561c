// optimizer.h: AdamW or SGD on this rank's shards of a model. Moments fp32, beside the masters.
//
// global_norm is collective; step is local. No state depends on how tensors are cut: any layout can take
// over.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/shard/sharded_model.h"
#include "moesaic/train/config.h"

namespace moesaic {

class Optimizer {
 public:
  Optimizer(const OptimConfig& config, ShardedModel& model);

  // sqrt of the sum of squares of every gradient of the model, each parameter counted once, summed in fp64.
  // The same on all ranks. Not finite when any gradient is not.
  double global_norm();

  // Applies shard gradients times `gradient_scale`. Call refresh_images() after it.
  void step(double learning_rate, double gradient_scale);

  // Steps applied so far (skipped ones do not count): the t of AdamW's bias correction.
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  // Names of the moments, as in torch: "exp_avg", "exp_avg_sq", or "momentum_buffer", or none.
  const std::vector<std::string>& moment_names() const { return moment_names_; }
  // Moment `moment` of unit `unit` (in the order of ShardedModel::units()).
  std::span<float> moment(std::size_t moment, std::size_t unit);

 private:
  OptimConfig config_;
  ShardedModel* model_;
  std::int64_t steps_ = 0;
  std::vector<std::string> moment_names_;
  std::vector<std::vector<Buffer>> moments_;  // [moment][unit]
};

// Warm-up from 0 (linear, reaching lr at step warmup_steps), then cosine to final_lr_fraction*lr at the last
// step, or constant. `step` counts from 0.
double learning_rate_at(const OptimConfig& config, std::int64_t step, std::int64_t total_steps);

}  // namespace moesaic
