#include <fmt/core.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/launch.h"
#include "moesaic/cli/progress.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/shard/memory_plan.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/checkpoint_dir.h"
#include "moesaic/train/run.h"

namespace moesaic::cli {
namespace {

// Set by SIGTERM, and by SIGUSR1, which launchers pass on to the ranks: save and end after this step.
std::atomic<bool> terminated = false;

// Also one that never completed a checkpoint, or whose only one is damaged.
bool holds_a_run(const std::filesystem::path& dir) {
  return std::filesystem::exists(dir / "metrics.jsonl") ||
         (std::filesystem::is_directory(dir / "checkpoints") &&
          !std::filesystem::is_empty(dir / "checkpoints"));
}

struct TrainCommand {
  std::filesystem::path config_file, run_dir;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool resume = false;

  void run() const;
  void on_rank(Communicator& world, const Config& config, const std::filesystem::path& dir) const;
};

void print_plan(const Config& config, int world_size) {
  const std::int64_t sequences = (micro_batch_sequences(config) + world_size - 1) / world_size;
  const MemoryPlan plan =
      plan_memory(config.model, parallel_options(config), world_size, moments_per_element(config),
                  sequences * config.data.seq_len, recomputed_layers(config));
  fmt::print("{}", describe(plan, world_size));
}

void print_losses(std::int64_t step, const std::vector<HeldOutLoss>& losses) {
  fmt::print("\nheld-out loss after step {}:\n", step);
  for (const HeldOutLoss& loss : losses) {
    fmt::print("  {:<20} {:.4f} nats per token ({} tokens)\n", loss.name, loss.loss, loss.tokens);
  }
}

// The run directory rank 0 would use, on every rank: a default one carries the time.
std::filesystem::path agree_on(Communicator& world, const std::filesystem::path& dir) {
  std::string text = dir.string();
  text.resize(4096, '\0');
  broadcast(world, std::as_writable_bytes(std::span(text)), 0);
  return text.c_str();
}

void TrainCommand::on_rank(Communicator& world, const Config& config,
                           const std::filesystem::path& dir) const {
  const bool talks = world.rank() == 0;
  const std::filesystem::path run_directory = agree_on(world, dir);
  if (talks) print_plan(config, world.size());
  Trainer trainer(config, world);
  const RunLock lock(world, run_directory);  // after all that can be wrong with the configuration
  if (resume) {
    const std::filesystem::path newest = newest_checkpoint(world, run_directory / "checkpoints");
    load_checkpoint(trainer, newest);
    if (talks) fmt::print("resuming after step {} from {}\n", trainer.steps_done(), newest.string());
  } else {
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
  }
  if (talks) {
    fmt::print("run directory {}\n", run_directory.string());
    std::fflush(stdout);
  }

  RunObserver observer;
  observer.stop_requested = [] { return terminated.load(); };
  std::optional<ProgressBar> bar;
  if (talks) {
    bar.emplace(trainer.steps_done() + 1, config.train.steps);
    observer.on_step = [&](const StepReport& report) { bar->show(report); };
    observer.on_evaluation = print_losses;
  }
  run_training(trainer, run_directory, observer);
  bar.reset();
  if (!talks) return;
  fmt::print("{} {} of {} steps, checkpoints in {}\n",
             trainer.steps_done() == config.train.steps ? "done:" : "stopped after", trainer.steps_done(),
             config.train.steps, (run_directory / "checkpoints").string());
}

void TrainCommand::run() const {
  require(!config_file.empty() || (resume && !run_dir.empty()),
          "train needs --config FILE, or --run-dir DIR --resume to continue a run");
  require(!resume || !run_dir.empty(), "--resume needs the --run-dir of the run to continue");
  Config config = load_config(config_file.empty() ? config_of_run(run_dir) : config_file, overrides);
  set_ranks(config, ranks);
  const Dataset readable(config.data,
                         config.model.vocab_size);  // bad token files are found before any rank starts
  const std::filesystem::path dir = run_dir.empty() ? default_run_dir(config_file) : run_dir;
  // A run is never overwritten.
  require(resume || !holds_a_run(dir),
          "{} already holds a training run; continue it with --resume or choose another --run-dir",
          dir.string());
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, [](int) { terminated = true; });
  launch(config, [&](Communicator& world) { on_rank(world, config, dir); });
}

}  // namespace

void add_train(CLI::App& app) {
  auto command = std::make_shared<TrainCommand>();
  CLI::App* sub = app.add_subcommand("train", "train a model, alone or under mpirun / srun");
  sub->add_option("--config", command->config_file, "TOML configuration (see docs/configuration.md)")
      ->check(CLI::ExistingFile);
  sub->add_option("--run-dir", command->run_dir, "where the run is kept (default: runs/<time>-<config>)");
  sub->add_option("--set", command->overrides, "override a configuration key: section.key=value");
  sub->add_option("--ranks", command->ranks, "ranks, as threads of this process (default: parallel.ranks)")
      ->check(kRanks);
  sub->add_flag("--resume", command->resume, "continue from the newest complete checkpoint of --run-dir");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
