// run.h: a whole training run in its directory: steps, metrics, evaluations, checkpoints.
//
//   run_dir/config.toml                resolved configuration
//   run_dir/metrics.jsonl              metrics.h
//   run_dir/checkpoints/step-NNNNNN/   checkpoint.h
//   run_dir/lock                       held by the process that trains here
//
// Collective. Only rank 0 writes config and metrics.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "moesaic/core/file.h"
#include "moesaic/train/trainer.h"

namespace moesaic {

// Told to the caller on every rank; only rank 0 should talk.
struct RunObserver {
  // Before the first step; the run directory is there.
  std::function<void()> on_start = [] {};
  // With the number of the step that is made next; every rank may take part in collectives of its own.
  std::function<void(std::int64_t step)> before_step = [](std::int64_t) {};
  std::function<void(const StepReport&)> on_step = [](const StepReport&) {};
  std::function<void(std::int64_t step, const std::vector<HeldOutLoss>&)> on_evaluation =
      [](std::int64_t, const std::vector<HeldOutLoss>&) {};
  std::function<void(const std::filesystem::path&)> on_checkpoint = [](const std::filesystem::path&) {};
  // Asked after every step on every rank; true on any rank saves and ends the run, as train.stop_at does.
  std::function<bool()> stop_requested = [] { return false; };
};

// Keeps other runs out of `run_dir` (made where it is missing) as long as it lives. Collective; IoError on
// every rank, naming the process that trains there, or what the system says against it.
class RunLock {
 public:
  RunLock(Communicator& world, const std::filesystem::path& run_dir);

 private:
  std::optional<FileLock> lock_;  // of rank 0
};

// Continues from trainer.steps_done() to train.steps, or train.stop_at where that is sooner; saves a
// checkpoint at the end. Evaluates every train.eval_every steps, and at the end when train.steps was reached.
void run_training(Trainer& trainer, const std::filesystem::path& run_dir, const RunObserver& observer);

}  // namespace moesaic
