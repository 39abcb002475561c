#include "bench/exchange_step_job.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bench/busiest_card.h"
#include "bench/child_process.h"
#include "bench/layer_files.h"
#include "bench/moe_layer_ours.h"
#include "bench/mpi_environment.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/core/json.h"
#include "moesaic/cost/measure.h"
#include "moesaic/exchange/route_price.h"
#include "moesaic/train/threads.h"

namespace moesaic::bench {
namespace {

constexpr double kJobTimeoutS = 1800;
constexpr std::chrono::minutes kTimeout{10};
constexpr double kCalibrationBudget = 2;

nlohmann::json to_json(const ExchangeStepJob& job) {
  const LayerShape& shape = job.layer.shape;
  return {{"folder", job.folder.string()},
          {"width", shape.width},
          {"expert_width", shape.expert_width},
          {"num_experts", shape.num_experts},
          {"top_k", shape.top_k},
          {"gated", shape.gated},
          {"capacity_factor", shape.capacity_factor},
          {"warm_up", job.warm_up},
          {"passes", job.passes},
          {"route", job.route},
          {"chunks", job.chunks}};
}

std::filesystem::path results_file(const std::filesystem::path& folder, int rank) {
  return folder / fmt::format("results-{}.safetensors", rank);
}

std::vector<ExchangeStep> passes_of(Cluster& cluster, const ExchangeStepJob& job,
                                    std::vector<std::string> words, Launcher launcher) {
  const std::filesystem::path file = job.folder / "job.json";
  write_text_synced(file, to_json(job).dump());
  words.push_back(file.string());
  for (int rank = 0; rank < job.ranks; ++rank) std::filesystem::remove(results_file(job.folder, rank));
  JobOptions options{.ranks_per_host = job.ranks_per_host,
                     .launcher = launcher,
                     .timeout_s = kJobTimeoutS,
                     .environment = {"OMP_NUM_THREADS=1", "TORCH_CPP_LOG_LEVEL=ERROR", "DS_ACCELERATOR=cpu"}};
  options.environment.insert(options.environment.end(), kKeepFreedMemory.begin(), kKeepFreedMemory.end());
  std::vector<ExchangeStep> passes;
  for (const nlohmann::json& line : cluster.run(words, options).lines) {
    passes.push_back({line.at("seconds"), line.at("nic_bytes"), line.value("route", "")});
  }
  if (passes.size() != static_cast<std::size_t>(job.passes)) {
    throw Error(fmt::format("{} gave {} passes, expected {}", words[1], passes.size(), job.passes));
  }
  return passes;
}

LayerInputs part_of_rank(const std::filesystem::path& folder, int rank, int ranks) {
  const std::vector<at::Tensor> all =
      read_tensors(folder / "inputs.safetensors", {"x", "gradient", "router", "w_in", "w_out"});
  const auto part = [&](const at::Tensor& t) {
    const std::int64_t n = t.size(0) / ranks;
    return t.narrow(0, rank * n, n).clone();
  };
  LayerInputs inputs;
  inputs.x = part(all[0]);
  inputs.gradient = part(all[1]);
  inputs.router = all[2];
  inputs.weights = {part(all[3]), part(all[4])};
  return inputs;
}

Route route_of(const std::string& name) {
  const auto* route = std::ranges::find(kRoutes, name, [](Route route) { return name_of(route); });
  require(route != kRoutes.end(), "route '{}': unknown", name);
  return *route;
}

void run_passes(Transport& transport, const nlohmann::json& job) {
  limit_compute_threads(1);
  Communicator world(transport, discover_topology(transport), kTimeout);
  const RoutePrices prices(world.topology(), calibrate(world, {.budget_s = kCalibrationBudget}));
  const std::filesystem::path folder = job.at("folder").get<std::string>();
  const LayerInputs inputs = part_of_rank(folder, world.rank(), world.size());
  const LayerCase layer{{"", job.at("width"), job.at("expert_width"), job.at("num_experts"), job.at("top_k"),
                         job.at("gated"), job.at("capacity_factor")},
                        inputs.x.size(0),
                        inputs.x.scalar_type(),
                        /*backward=*/true};
  DispatchOptions dispatch{.route = std::nullopt, .prices = &prices, .chunks = std::nullopt};
  if (job.at("route") != "auto") dispatch.route = route_of(job.at("route").get<std::string>());
  if (job.at("chunks") > 0) dispatch.chunks = job.at("chunks").get<std::int64_t>();
  WeightSets weights(inputs, /*requires_grad=*/true);
  OurLayer ours(layer, inputs, weights, world, dispatch);
  const int warm_up = job.at("warm_up"), passes = job.at("passes");
  for (int i = 0; i < warm_up + passes; ++i) {
    barrier(world);
    const NicBytes before = nic_bytes_of_this_host();
    const auto start = std::chrono::steady_clock::now();
    ours.run();
    barrier(world);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const NicBytes after = nic_bytes_of_this_host();
    const std::int64_t nic_bytes =
        bytes_of_busiest_card(world, {after.sent - before.sent, after.received - before.received});
    if (world.rank() != 0 || i < warm_up) continue;
    const nlohmann::json line = {{"seconds", elapsed.count()},
                                 {"nic_bytes", nic_bytes},
                                 {"route", ours.route() ? name_of(*ours.route()) : "none"}};
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
  write_results(ours.results(), results_file(folder, world.rank()));
}

}  // namespace

std::vector<ExchangeStep> our_passes(Cluster& cluster, const ExchangeStepJob& job) {
  return passes_of(cluster, job, {own_path(), "exchange_step_job"}, Launcher::kMpirun);
}

std::vector<ExchangeStep> deepspeed_passes(Cluster& cluster, const ExchangeStepJob& job,
                                           const std::string& python) {
  return passes_of(cluster, job, {python, MOESAIC_SOURCE_DIR "/bench/peers/exchange_deepspeed.py"},
                   Launcher::kTorch);
}

LayerResults results_of_ranks(const ExchangeStepJob& job) {
  std::vector<LayerResults> parts;
  for (int rank = 0; rank < job.ranks; ++rank) {
    parts.push_back(read_results(results_file(job.folder, rank)));
  }
  const auto joined = [&](at::Tensor LayerResults::*what) {
    std::vector<at::Tensor> tensors;
    for (const LayerResults& part : parts) tensors.push_back(part.*what);
    return at::cat(tensors);
  };
  at::Tensor d_router = at::zeros_like(parts.front().d_router, at::kDouble);
  for (const LayerResults& part : parts) d_router += part.d_router.to(at::kDouble);
  return {joined(&LayerResults::y), joined(&LayerResults::d_x), d_router, joined(&LayerResults::d_w_in),
          joined(&LayerResults::d_w_out)};
}

void run_exchange_step_job(const std::filesystem::path& job_file) {
  prefer_mpi_environment();
  const std::unique_ptr<Transport> transport = make_mpi_transport();
  try {
    run_passes(*transport, parse_json(read_text(job_file), job_file.string(), 2));
  } catch (const std::exception& error) {
    const nlohmann::json line = {{"error", fmt::format("rank {}: {}", transport->rank(), error.what())}};
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
    transport->abort(error.what());
    throw;
  }
}

}  // namespace moesaic::bench
