#include "moesaic/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "moesaic/comm/collectives.h"
#include "moesaic/kernels/optimizer.h"

namespace moesaic {

Optimizer::Optimizer(const OptimConfig& config, ShardedModel& model) : config_(config), model_(&model) {
  if (config.name == OptimizerKind::kAdamW) {
    moment_names_ = {"exp_avg", "exp_avg_sq"};
  } else if (config.momentum != 0) {
    moment_names_ = {"momentum_buffer"};
  }
  for (std::size_t m = 0; m < moment_names_.size(); ++m) {
    moments_.emplace_back();
    for (auto& unit : model.units()) {
      moments_.back().emplace_back(unit->shard_elements() * std::int64_t{sizeof(float)});
      std::ranges::fill(moment(m, moments_.back().size() - 1), 0.0f);
    }
  }
}

std::span<float> Optimizer::moment(std::size_t moment, std::size_t unit) {
  Buffer& buffer = moments_.at(moment).at(unit);
  return {buffer.as<float>(), static_cast<std::size_t>(buffer.bytes()) / sizeof(float)};
}

double Optimizer::global_norm() {
  const Span span(model_->world().tracer(), {.phase = Phase::kNorm, .name = "global norm"});
  double sum = 0;
  for (auto& unit : model_->units()) {
    sum +=
        kernels::sum_of_squares(unit->gradient().data(), static_cast<std::int64_t>(unit->gradient().size()));
  }
  all_reduce(model_->world(), std::span<double>(&sum, 1));
  return std::sqrt(sum);
}

void Optimizer::step(double learning_rate, double gradient_scale) {
  const Span span(model_->world().tracer(), {.phase = Phase::kOptimizer, .name = "update"});
  ++steps_;
  const int rank = model_->world().rank();
  const auto scale = static_cast<float>(gradient_scale);
  for (std::size_t u = 0; u < model_->units().size(); ++u) {
    ShardedUnit& unit = *model_->units()[u];
    for (const Segment& segment : unit.layout().shard_segments(rank)) {
      const double decay = segment.tensor->decay ? config_.weight_decay : 0.0;
      float* master = unit.master().data() + segment.offset;
      const float* gradient = unit.gradient().data() + segment.offset;
      const auto moment_at = [&](std::size_t m) { return moment(m, u).data() + segment.offset; };
      if (config_.name == OptimizerKind::kAdamW) {
        kernels::adamw({learning_rate, config_.beta1, config_.beta2, config_.eps, steps_}, decay, scale,
                       segment.count, gradient, master, moment_at(0), moment_at(1));
      } else {
        kernels::sgd({learning_rate, config_.momentum}, decay, scale, segment.count, gradient, master,
                     moment_names_.empty() ? nullptr : moment_at(0));
      }
    }
  }
}

double learning_rate_at(const OptimConfig& config, std::int64_t step, std::int64_t total_steps) {
  if (step < config.warmup_steps) {
    return config.lr * static_cast<double>(step + 1) / static_cast<double>(config.warmup_steps);
  }
  if (config.schedule == LrSchedule::kConstant) return config.lr;
  const auto length = static_cast<double>(std::max<std::int64_t>(1, total_steps - config.warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - config.warmup_steps) / length);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return config.lr * (config.final_lr_fraction + (1.0 - config.final_lr_fraction) * cosine);
}

}  // namespace moesaic
