#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/environment.h"
#include "moesaic/cli/launch.h"
#include "moesaic/cli/progress.h"
#include "moesaic/cli/report.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/shard/memory_plan.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/checkpoint_dir.h"
#include "moesaic/train/run.h"
#include "moesaic/train/timeline.h"
#include "moesaic/train/weight_recorder.h"

namespace moesaic::cli {
namespace {

// Of the ranks as `train` sees them: with a tracer, beside the groups of a trainer (up to 7).
constexpr int kTracedChannel = 8;

// Set by SIGTERM, and by SIGUSR1, which launchers pass on to the ranks: save and end after this step.
std::atomic<bool> terminated = false;

// Also one that never completed a checkpoint, or whose only one is damaged.
bool holds_checkpoints(const std::filesystem::path& dir) {
  return std::filesystem::is_directory(dir / "checkpoints") &&
         !std::filesystem::is_empty(dir / "checkpoints");
}

bool holds_a_run(const std::filesystem::path& dir) {
  return std::filesystem::exists(dir / "metrics.jsonl") || holds_checkpoints(dir);
}

struct TrainCommand {
  std::filesystem::path config_file, run_dir;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool resume = false, no_report = false, trace = false;
  std::string traced_steps;  // "FIRST:LAST"; empty: a few in the middle
  std::filesystem::path weights_dir;
  std::vector<std::int64_t> recorded_steps;

  void run() const;
  void on_rank(Communicator& world, const Config& config, const std::filesystem::path& run_directory) const;
};

void print_plan(const Config& config, const Topology& topology) {
  const int world_size = topology.world_size();
  const std::int64_t sequences = (micro_batch_sequences(config) + world_size - 1) / world_size;
  const MemoryPlan plan =
      plan_memory(config.model, parallel_options(config), topology, moments_per_element(config),
                  sequences * config.data.seq_len, recomputed_layers(config));
  fmt::print("{}", describe(plan, world_size));
}

// The training is done and saved: a report that fails is no failure of it.
void report(const std::filesystem::path& run_dir) {
  const std::filesystem::path html = run_dir / "report.html";
  try {
    write_report(run_dir, html, "");
    fmt::print("report in {}\n", html.string());
  } catch (const Error& error) {
    fmt::print(stderr, "moesaic: warning: {}\n", error.what());
  }
}

void print_losses(std::int64_t step, const std::vector<HeldOutLoss>& losses) {
  fmt::print("\nheld-out loss after step {}:\n", step);
  for (const HeldOutLoss& loss : losses) {
    fmt::print("  {:<20} {:.4f} nats per token ({} tokens)\n", loss.name, loss.loss, loss.tokens);
  }
}

// Nothing is lost by a resync, but memory or network may be failing.
void print_resyncs(const StepReport& report) {
  for (const UnitGathers& gathers : report.gathers) {
    if (gathers.counts.resyncs == 0) continue;
    fmt::print("\nstep {}: {} had to be gathered again in full: {}\n", report.step, gathers.unit,
               gathers.resync_reason);
  }
}

// How each unit's weights and gradients travel, said when it changes. Probes and trials, which last a few
// steps, are left to the log.
class ChoiceNotes {
 public:
  void show(const StepReport& report) {
    for (const UnitGathers& gathers : report.gathers) {
      if (!gathers.decision || gathers.decision->probe) continue;
      const auto coded = codec::name_of(gathers.decision->coded);
      const bool raw = gathers.method == codec::Method::kRaw;
      show(report.step, gathers.unit, {codec::name_of(gathers.method), raw ? coded : "raw"},
           {gathers.decision->predicted_raw_s, gathers.decision->predicted_coded_s,
            gathers.decision->window_s},
           raw);
    }
    for (const UnitReduces& reduces : report.reduces) {
      if (!reduces.decision || reduces.decision->probe) continue;
      const auto bf16 = codec::name_of(codec::GradientWire::kBf16);
      const auto entropy = codec::name_of(codec::GradientWire::kEntropy);
      const bool plain = reduces.wire == codec::GradientWire::kBf16;
      show(report.step, "gradients of " + reduces.unit, {plain ? bf16 : entropy, plain ? entropy : bf16},
           {reduces.decision->predicted_bf16_s, reduces.decision->predicted_entropy_s,
            reduces.decision->window_s},
           plain);
    }
    if (report.trial && std::exchange(plain_, report.trial->plain) != report.trial->plain) {
      fmt::print("\nstep {}: steps took {:.3g} ms coded, {:.3g} ms plain: {} from now on\n", report.step,
                 1e3 * report.trial->coded_s, 1e3 * report.trial->plain_s,
                 plain_ ? "nothing is coded" : "coded as above");
    }
  }

 private:
  struct Names {
    std::string_view chosen, other;
  };
  struct Predicted {
    double plain_s, coded_s, window_s;
  };
  void show(std::int64_t step, const std::string& what, Names names, Predicted predicted, bool plain) {
    const auto [known, is_new] = known_.try_emplace(what, names.chosen);
    if (!is_new && std::exchange(known->second, names.chosen) == names.chosen) return;
    fmt::print("{}step {}: {} travel{} {}: {:.3g} ms predicted, {} {:.3g} ms", is_new ? "" : "\n", step, what,
               what.starts_with("gradients") ? "" : "s", names.chosen,
               1e3 * (plain ? predicted.plain_s : predicted.coded_s), names.other,
               1e3 * (plain ? predicted.coded_s : predicted.plain_s));
    if (predicted.window_s > 0) fmt::print("; {:.3g} ms pass while computing", 1e3 * predicted.window_s);
    fmt::print("\n");
  }
  std::map<std::string, std::string> known_;  // what was chosen last, by what travels
  bool plain_ = false;                        // by trials of whole steps
};

// The run directory rank 0 would use, on every rank: a default one carries the time.
std::filesystem::path agree_on(Communicator& world, const std::filesystem::path& dir) {
  std::string text = dir.string();
  text.resize(4096, '\0');
  broadcast(world, std::as_writable_bytes(std::span(text)), 0);
  return text.c_str();
}

// Of steps first_step..last_step.
std::unique_ptr<Timeline> make_timeline(const std::string& range, std::int64_t first_step,
                                        std::int64_t last_step) {
  require(first_step <= last_step, "--trace: the run has made all of its {} steps already", last_step);
  if (range.empty()) {
    const std::int64_t middle = (first_step + last_step) / 2;
    return std::make_unique<Timeline>(std::max(first_step, middle - 1), std::min(last_step, middle + 1));
  }
  std::int64_t first = 0, last = 0;
  const char* end = range.data() + range.size();
  const auto before = std::from_chars(range.data(), end, first);
  const bool colon = before.ec == std::errc() && before.ptr != end && *before.ptr == ':';
  const auto after = colon ? std::from_chars(before.ptr + 1, end, last) : before;
  require(colon && after.ec == std::errc() && after.ptr == end && first >= 1 && first <= last,
          "--trace {}: expected FIRST:LAST, steps counted from 1, such as 100:102", range);
  require(first <= last_step && last >= first_step, "--trace {}: this run makes steps {} to {}", range,
          first_step, last_step);
  return std::make_unique<Timeline>(first, std::min(last, last_step));
}

std::int64_t end_of(const TrainConfig& train) {
  return train.stop_at > 0 ? std::min(train.stop_at, train.steps) : train.steps;
}

void require_recordable(const std::vector<std::int64_t>& steps, std::int64_t first_step,
                        std::int64_t last_step) {
  for (const std::int64_t step : steps) {
    require(step >= first_step && step <= last_step, "--record-steps {}: this run makes steps {} to {}", step,
            first_step, last_step);
  }
}

void TrainCommand::on_rank(Communicator& world, const Config& config,
                           const std::filesystem::path& run_directory) const {
  const bool talks = world.rank() == 0;
  if (talks) {
    print_plan(config, world.topology());
    for (const std::string& note : moesaic::notes(config)) {
      fmt::print(stderr, "moesaic: warning: {}\n", note);
    }
  }
  std::optional<RunLock> lock;
  std::optional<std::filesystem::path> newest;
  std::int64_t steps_done = 0;
  if (resume) {
    newest_checkpoint(world, run_directory / "checkpoints");  // none: nothing is left behind
    lock.emplace(world, run_directory);
    newest = newest_checkpoint(world, run_directory / "checkpoints");
    steps_done = read_manifest(*newest).step;
    require(steps_done <= config.train.steps, "train.steps is {}, but the run has made {} already",
            config.train.steps, steps_done);
  }
  std::unique_ptr<Timeline> timeline;
  require_recordable(recorded_steps, steps_done + 1, end_of(config.train));
  if (trace) timeline = make_timeline(traced_steps, steps_done + 1, end_of(config.train));
  Communicator traced = world.split_all(kTracedChannel, {.tracer = timeline.get()});
  Trainer trainer(config, traced);
  if (!lock) lock.emplace(world, run_directory);  // a configuration that is wrong leaves no directory
  if (newest) {
    load_checkpoint(trainer, *newest);
    if (talks) fmt::print("resuming after step {} from {}\n", trainer.steps_done(), newest->string());
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
  ChoiceNotes notes;
  if (talks) {
    bar.emplace(trainer.steps_done() + 1, config.train.steps, world.topology().num_nodes());
    observer.on_evaluation = print_losses;
  }
  observer.on_start = [&] {
    record_environment(world, config, steps_done, run_directory / "environment.json");
  };
  std::optional<WeightRecorder> recorder;
  if (!weights_dir.empty()) recorder.emplace(trainer, weights_dir, recorded_steps);
  observer.before_step = [&](std::int64_t step) {
    if (recorder) recorder->before_step(step);
  };
  observer.on_step = [&](const StepReport& report) {
    if (talks) {
      print_resyncs(report);
      notes.show(report);
    }
    if (bar) bar->show(report);
    if (timeline && report.step == timeline->last_step()) {
      write_timeline(world, *timeline, host_name(), run_directory / "trace.json");
    }
  };
  run_training(trainer, run_directory, observer);
  bar.reset();
  if (timeline && trainer.steps_done() < timeline->last_step()) {  // it was told to stop sooner
    write_timeline(world, *timeline, host_name(), run_directory / "trace.json");
  }
  if (!talks) return;
  fmt::print("{} {} of {} steps, checkpoints in {}\n",
             trainer.steps_done() == config.train.steps ? "done:" : "stopped after", trainer.steps_done(),
             config.train.steps, (run_directory / "checkpoints").string());
}

void TrainCommand::run() const {
  require(!config_file.empty() || (resume && !run_dir.empty()),
          "train needs --config FILE, or --run-dir DIR --resume to continue a run");
  require(!resume || !run_dir.empty(), "--resume needs the --run-dir of the run to continue");
  require(weights_dir.empty() == recorded_steps.empty(),
          "--record-weights DIR and --record-steps STEPS need each other");
  require(resume || weights_dir.empty() || !holds_trace(weights_dir),
          "{} already holds a weight trace: choose another --record-weights", weights_dir.string());
  Config config = load_config(config_file.empty() ? config_of_run(run_dir) : config_file, overrides);
  set_ranks(config, ranks);
  const Dataset readable(config.data,
                         config.model.vocab_size);  // bad token files are found before any rank starts
  const std::filesystem::path dir = run_dir.empty() ? default_run_dir(config_file) : run_dir;
  // A run is never overwritten.
  require(resume || !holds_a_run(dir), "{} already holds a training run; {} another --run-dir", dir.string(),
          holds_checkpoints(dir) ? "continue it with --resume or choose"
                                 : "it completed no checkpoint and cannot be resumed: remove it or choose");
  for (const int signal : {SIGTERM, SIGUSR1}) std::signal(signal, [](int) { terminated = true; });
  std::filesystem::path used;  // rank 0's, where this process has it
  launch(config, [&](Communicator& world) {
    const std::filesystem::path run_directory = agree_on(world, dir);
    if (world.rank() == 0) used = run_directory;
    on_rank(world, config, run_directory);
  });
  if (!no_report && !used.empty()) report(used);
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
  const CLI::Option* trace =
      sub->add_option("--trace", command->traced_steps,
                      "write trace.json, a timeline of steps FIRST:LAST (default: three in the middle)")
          ->expected(0, 1)
          ->type_name("[FIRST:LAST]");
  sub->add_option("--record-weights", command->weights_dir,
                  "write the weights of --record-steps here, as bf16 images for `moesaic codec`");
  sub->add_option("--record-steps", command->recorded_steps,
                  "steps whose weights are recorded, as their forward pass has them: 28,29,30")
      ->delimiter(',');
  sub->add_flag("--no-report", command->no_report, "do not write report.html at the end");
  sub->callback([command, trace] {
    command->trace = trace->count() > 0;
    command->run();
  });
}

}  // namespace moesaic::cli
