#include "moesaic/train/run.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/train/agree.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/metrics.h"

namespace moesaic {
namespace {

bool every(std::int64_t interval, std::int64_t step) { return interval > 0 && step % interval == 0; }

// Without stop_at: it ends one invocation, and must not hold back the resumed one.
void write_config(Config config, const std::filesystem::path& file) {
  config.train.stop_at = 0;
  const std::filesystem::path renewed = file.string() + ".tmp";
  write_text_synced(renewed, to_toml(config));
  rename_path(renewed, file);
}

void create_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(fmt::format("cannot create {}: {}", folder.string(), error.message()));
}

// Whether any rank was asked to stop: they must all leave after the same step.
bool anyone_stops(Communicator& world, bool here) {
  std::int64_t count = here ? 1 : 0;
  all_reduce(world, std::span<std::int64_t>(&count, 1));
  return count > 0;
}

}  // namespace

RunLock::RunLock(Communicator& world, const std::filesystem::path& run_dir) {
  Failure failure;
  if (world.rank() == 0) {
    attempt(failure, [&] {
      create_folders(run_dir);
      try {
        lock_.emplace(run_dir / "lock");
      } catch (const IoError& error) {
        throw IoError(fmt::format("cannot train in {}: {}", run_dir.string(), error.what()));
      }
    });
  }
  agree(world, failure);
}

void run_training(Trainer& trainer, const std::filesystem::path& run_dir, const RunObserver& observer) {
  const Config& config = trainer.config();
  const std::int64_t end =
      config.train.stop_at > 0 ? std::min(config.train.stop_at, config.train.steps) : config.train.steps;
  const std::filesystem::path checkpoints = run_dir / "checkpoints";
  std::optional<MetricsLog> metrics;
  if (trainer.world().rank() == 0) {
    create_folders(checkpoints);
    write_config(config, run_dir / "config.toml");
    metrics.emplace(run_dir / "metrics.jsonl", trainer.steps_done());
  }

  observer.on_start();

  const auto evaluate = [&] {
    const auto start = Clock::now();
    const std::vector<HeldOutLoss> losses = trainer.evaluate(config.train.eval_tokens);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (metrics) metrics->write(trainer.steps_done(), losses, seconds);
    observer.on_evaluation(trainer.steps_done(), losses);
  };
  const auto save = [&] { observer.on_checkpoint(save_checkpoint(trainer, checkpoints)); };

  for (bool stop = false; !stop && trainer.steps_done() < end;) {
    observer.before_step(trainer.steps_done() + 1);
    const StepReport report = trainer.step();
    if (metrics) metrics->write(report, choices_interval(config));
    observer.on_step(report);
    stop = anyone_stops(trainer.world(), observer.stop_requested());
    const bool last = stop || report.step == end;
    // Evaluate, then save: a run killed between the two does the last steps again, evaluation included.
    if (every(config.train.eval_every, report.step) || report.step == config.train.steps) evaluate();
    if (every(config.checkpoint.every, report.step) || last) save();
  }
}

}  // namespace moesaic
