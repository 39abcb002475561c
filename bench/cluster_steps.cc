#include "bench/cluster_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "bench/busiest_card.h"
#include "bench/child_process.h"
#include "bench/mpi_environment.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/threads.h"
#include "moesaic/train/trainer.h"

namespace moesaic::bench {
namespace {

constexpr double kJobTimeoutS = 3600;
constexpr std::chrono::minutes kStepTimeout{30};

void say(const nlohmann::json& object) {
  fmt::print("{}\n", object.dump());
  std::fflush(stdout);
}

std::vector<ClusterStep> steps_of_job(Cluster& cluster, const std::vector<std::string>& words,
                                      const Turn& turn, Launcher launcher) {
  JobOptions options{.ranks_per_host = turn.ranks_per_host,
                     .launcher = launcher,
                     .timeout_s = kJobTimeoutS,
                     .environment = {"OMP_NUM_THREADS=1", "TORCH_CPP_LOG_LEVEL=ERROR"}};
  options.environment.insert(options.environment.end(), kKeepFreedMemory.begin(), kKeepFreedMemory.end());
  std::vector<ClusterStep> steps;
  for (const nlohmann::json& line : cluster.run(words, options).lines) {
    ClusterStep step{.step = line.at("step"),
                     .seconds = line.at("seconds"),
                     .loss = line.at("loss"),
                     .nic_bytes = line.at("nic_bytes")};
    if (line.contains("phases")) {
      const nlohmann::json& phases = line["phases"];
      step.gather_exposed = phases.at("gather_exposed");
      step.reduce_exposed = phases.at("reduce_exposed");
      step.gather_background = phases.at("gather_background");
      step.reduce_background = phases.at("reduce_background");
      const nlohmann::json& codec = line.at("codec");
      step.weight_bits = codec.at("weight_bits");
      step.gradient_bits = codec.at("gradient_bits");
      step.kept_per_weight = codec.at("kept_per_weight");
    }
    steps.push_back(step);
  }
  if (steps.size() != static_cast<std::size_t>(turn.timed_steps)) {
    throw Error(fmt::format("{} gave {} steps, expected {}", words[1], steps.size(), turn.timed_steps));
  }
  return steps;
}

std::vector<std::string> arguments_of(const Turn& turn) {
  return {turn.config_file.string(), turn.checkpoint.string(), std::to_string(turn.warm_up_steps),
          std::to_string(turn.timed_steps)};
}

nlohmann::json phases_of(const StepReport& report) {
  const auto mean = [&](Phase phase, const auto& column) {
    double sum = 0;
    for (const RankTimes& rank : report.by_rank)
      sum += (rank.phases.*column)[static_cast<std::size_t>(phase)];
    return sum / static_cast<double>(report.by_rank.size());
  };
  return {{"gather_exposed", mean(Phase::kGather, &PhaseTimes::waiting)},
          {"reduce_exposed", mean(Phase::kReduce, &PhaseTimes::waiting)},
          {"gather_background", mean(Phase::kGather, &PhaseTimes::background)},
          {"reduce_background", mean(Phase::kReduce, &PhaseTimes::background)}};
}

nlohmann::json codec_of(const StepReport& report) {
  const auto over = [](double sum, std::int64_t count) {
    return count == 0 ? 0.0 : sum / static_cast<double>(count);
  };
  std::int64_t sent = 0, weights = 0, kept_for = 0, kept = 0, reduced = 0, gradients = 0;
  for (const UnitGathers& gathers : report.gathers) {
    sent += gathers.counts.coded_bytes;
    weights += gathers.counts.words;
    kept += gathers.reference_bytes;
    if (gathers.method != codec::Method::kRaw) kept_for += gathers.words;
  }
  for (const UnitReduces& reduces : report.reduces) {
    if (reduces.wire == codec::GradientWire::kBf16) continue;
    reduced += reduces.counts.coded_bytes;
    gradients += reduces.counts.live_words;
  }
  return {{"weight_bits", over(8.0 * static_cast<double>(sent), weights)},
          {"gradient_bits", over(8.0 * static_cast<double>(reduced), gradients)},
          {"kept_per_weight", over(static_cast<double>(kept), kept_for)}};
}

void timed_steps(Transport& transport, const Turn& turn) {
  const Config config = load_config(turn.config_file);
  limit_compute_threads(static_cast<int>(config.parallel.threads_per_rank));
  Communicator world(transport, discover_topology(transport), kStepTimeout);
  Trainer trainer(config, world);
  load_checkpoint(trainer, turn.checkpoint);
  for (int i = 0; i < turn.warm_up_steps + turn.timed_steps; ++i) {
    barrier(world);
    const NicBytes before = nic_bytes_of_this_host();
    const auto start = std::chrono::steady_clock::now();
    const StepReport report = trainer.step();
    barrier(world);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const NicBytes after = nic_bytes_of_this_host();
    const std::int64_t nic_bytes =
        bytes_of_busiest_card(world, {after.sent - before.sent, after.received - before.received});
    if (world.rank() != 0 || i < turn.warm_up_steps) continue;
    say({{"step", report.step},
         {"seconds", elapsed.count()},
         {"loss", report.loss},
         {"nic_bytes", nic_bytes},
         {"phases", phases_of(report)},
         {"codec", codec_of(report)}});
  }
}

}  // namespace

std::vector<ClusterStep> our_steps(Cluster& cluster, const Turn& turn) {
  std::vector<std::string> words = {own_path(), "cluster_steps"};
  for (std::string& word : arguments_of(turn)) words.push_back(std::move(word));
  return steps_of_job(cluster, words, turn, Launcher::kMpirun);
}

std::vector<ClusterStep> fsdp2_steps(Cluster& cluster, const Turn& turn, const std::string& python,
                                     const std::string& mode) {
  std::vector<std::string> words = {python, MOESAIC_SOURCE_DIR "/bench/peers/fsdp2_steps.py", mode};
  for (std::string& word : arguments_of(turn)) words.push_back(std::move(word));
  return steps_of_job(cluster, words, turn, Launcher::kTorch);
}

std::filesystem::path train_on_threads(const std::filesystem::path& config_file, int steps,
                                       const std::filesystem::path& checkpoints) {
  ChildProcess child("train_to", {own_path(), "train_to", config_file.string(), std::to_string(steps),
                                  checkpoints.string()});
  for (nlohmann::json line = child.receive();; line = child.receive()) {
    if (line.contains("checkpoint")) return line["checkpoint"].get<std::string>();
    fmt::print(stderr, "on threads, step {} of {}: loss {:.4f}\n", line.at("step").get<int>(), steps,
               line.at("loss").get<double>());
  }
}

void run_cluster_steps(const Turn& turn) {
  prefer_mpi_environment();
  const std::unique_ptr<Transport> transport = make_mpi_transport();
  try {
    timed_steps(*transport, turn);
  } catch (const std::exception& error) {
    say({{"error", fmt::format("rank {}: {}", transport->rank(), error.what())}});
    transport->abort(error.what());
    throw;
  }
}

void run_train_to(const std::filesystem::path& config_file, int steps,
                  const std::filesystem::path& checkpoints) {
  const Config config = load_config(config_file);
  const auto ranks = static_cast<int>(config.parallel.ranks);
  run_inproc(ranks, [&](Transport& transport) {
    limit_compute_threads(static_cast<int>(config.parallel.threads_per_rank));
    Communicator world(transport, Topology::one_node(ranks), kStepTimeout);
    Trainer trainer(config, world);
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
    for (int i = 0; i < steps; ++i) {
      const StepReport report = trainer.step();
      if (world.rank() == 0) say({{"step", report.step}, {"loss", report.loss}});
    }
    const std::filesystem::path checkpoint = save_checkpoint(trainer, checkpoints);
    if (world.rank() == 0) say({{"checkpoint", checkpoint.string()}});
  });
}

}  // namespace moesaic::bench
