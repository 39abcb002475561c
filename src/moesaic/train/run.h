// run.h: a whole training run in its directory: steps, metrics, evaluations, checkpoints.
//
//   run_dir/config.toml                resolved configuration
//   run_dir/metrics.jsonl              metrics.h
//   run_dir/checkpoints/step-NNNNNN/   checkpoint.h
//
// Collective. Only rank 0 writes config and metrics.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "moesaic/train/trainer.h"

namespace moesaic {

// Told to the caller on every rank; only rank 0 should talk.
struct RunObserver {
  // Before the first step; the run directory is there.
  std::function<void()> on_start = [] {};
  std::function<void(const StepReport&)> on_step = [](const StepReport&) {};
  std::function<void(std::int64_t step, const std::vector<HeldOutLoss>&)> on_evaluation =
      [](std::int64_t, const std::vector<HeldOutLoss>&) {};
  std::function<void(const std::filesystem::path&)> on_checkpoint = [](const std::filesystem::path&) {};
  // Asked after every step on every rank; true on any rank saves and ends the run, as train.stop_at does.
  std::function<bool()> stop_requested = [] { return false; };
};

// Continues from trainer.steps_done() to train.steps, or train.stop_at where that is sooner; saves a
// checkpoint at the end. Evaluates every train.eval_every steps, and at the end when train.steps was reached.
void run_training(Trainer& trainer, const std::filesystem::path& run_dir, const RunObserver& observer);

}  // namespace moesaic
