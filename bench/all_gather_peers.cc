#include "bench/all_gather_peers.h"

#include <fmt/format.h>

#include <filesystem>

#include "bench/child_process.h"
#include "bench/mpi_choices.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

std::vector<AllGatherTime> times(Cluster& cluster, std::vector<std::string> words, const JobOptions& options,
                                 const std::string& how, const std::vector<std::int64_t>& bytes_per_rank,
                                 int iterations) {
  words.push_back(std::to_string(iterations));
  for (const std::int64_t bytes : bytes_per_rank) words.push_back(std::to_string(bytes));
  std::vector<AllGatherTime> all;
  for (const nlohmann::json& line : cluster.run(words, options).lines) {
    all.push_back({line["bytes_per_rank"], line["seconds"], line["nic_received_bytes"], how});
  }
  if (all.size() != bytes_per_rank.size()) {
    throw Error(fmt::format("{} gave {} results, expected {}", how, all.size(), bytes_per_rank.size()));
  }
  return all;
}

}  // namespace

std::vector<AllGatherTime> best_mpi_all_gather(Cluster& cluster, int ranks_per_host,
                                               const std::vector<std::int64_t>& bytes_per_rank,
                                               int iterations) {
  const auto program = std::filesystem::path(own_path()).parent_path() / "bench_mpi_all_gather";
  std::vector<AllGatherTime> best;
  for (const MpiChoice& choice :
       mpi_choices("allgatherv", {{"own choice", 0}, {"bruck", 2}, {"ring", 3}, {"neighbor exchange", 4}})) {
    const JobOptions options{.ranks_per_host = ranks_per_host, .environment = choice.environment};
    const std::vector<AllGatherTime> found =
        times(cluster, {program}, options, choice.name, bytes_per_rank, iterations);
    if (best.empty()) best = found;
    for (std::size_t i = 0; i < best.size(); ++i) {
      if (found[i].seconds < best[i].seconds) best[i] = found[i];
    }
  }
  return best;
}

std::vector<AllGatherTime> gloo_all_gather(Cluster& cluster, const std::string& python, int ranks_per_host,
                                           const std::vector<std::int64_t>& bytes_per_rank, int iterations) {
  const JobOptions options{.ranks_per_host = ranks_per_host,
                           .launcher = Launcher::kTorch,
                           .environment = {"TORCH_CPP_LOG_LEVEL=ERROR"}};
  return times(cluster, {python, MOESAIC_SOURCE_DIR "/bench/peers/gloo_all_gather.py"}, options, "gloo",
               bytes_per_rank, iterations);
}

}  // namespace moesaic::bench
