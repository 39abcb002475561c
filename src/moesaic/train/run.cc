#include "moesaic/train/run.h"

#include <algorithm>
#include <fstream>
#include <optional>

#include "moesaic/core/error.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/metrics.h"

namespace moesaic {
namespace {

bool every(std::int64_t interval, std::int64_t step) { return interval > 0 && step % interval == 0; }

void write_config(const Config& config, const std::filesystem::path& file) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << to_toml(config);
  if (!out.flush()) throw IoError(fmt::format("cannot write {}", file.string()));
}

}  // namespace

void run_training(Trainer& trainer, const std::filesystem::path& run_dir, const RunObserver& observer) {
  const Config& config = trainer.config();
  const std::int64_t end =
      config.train.stop_at > 0 ? std::min(config.train.stop_at, config.train.steps) : config.train.steps;
  const std::filesystem::path checkpoints = run_dir / "checkpoints";
  std::optional<MetricsLog> metrics;
  if (trainer.world().rank() == 0) {
    std::filesystem::create_directories(checkpoints);
    write_config(config, run_dir / "config.toml");
    metrics.emplace(run_dir / "metrics.jsonl", trainer.steps_done());
  }

  const auto evaluate = [&] {
    const std::vector<HeldOutLoss> losses = trainer.evaluate(config.train.eval_tokens);
    if (metrics) metrics->write(trainer.steps_done(), losses);
    observer.on_evaluation(trainer.steps_done(), losses);
  };
  const auto save = [&] { observer.on_checkpoint(save_checkpoint(trainer, checkpoints)); };

  bool saved = trainer.steps_done() > 0, evaluated = false;
  while (trainer.steps_done() < end) {
    const StepReport report = trainer.step();
    if (metrics) metrics->write(report);
    observer.on_step(report);
    evaluated = every(config.train.eval_every, report.step);
    if (evaluated) evaluate();
    saved = every(config.checkpoint.every, report.step);
    if (saved) save();
  }
  if (!saved) save();
  if (!evaluated && trainer.steps_done() == config.train.steps) evaluate();
}

}  // namespace moesaic
