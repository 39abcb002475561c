#include "bench/all_gather_peers.h"

#include <fmt/format.h>

#include <filesystem>

#include "bench/child_process.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

struct Choice {
  std::string name;
  std::vector<std::string> environment;
};

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
  const auto algorithm = [](int number) {
    return std::vector<std::string>{"OMPI_MCA_coll_tuned_use_dynamic_rules=1",
                                    fmt::format("OMPI_MCA_coll_tuned_allgatherv_algorithm={}", number)};
  };
  const std::vector<Choice> algorithms = {{"own choice", {}},
                                          {"bruck", algorithm(2)},
                                          {"ring", algorithm(3)},
                                          {"neighbor exchange", algorithm(4)}};
  const std::vector<Choice> messages = {
      {"default messages", {}},
      {"eager 4 MiB",
       {"OMPI_MCA_btl_tcp_eager_limit=4194304", "OMPI_MCA_btl_tcp_rndv_eager_limit=4194304",
        "OMPI_MCA_btl_tcp_max_send_size=4194304"}}};
  const auto program = std::filesystem::path(own_path()).parent_path() / "bench_mpi_all_gather";
  std::vector<AllGatherTime> best;
  for (const Choice& chosen : algorithms) {
    for (const Choice& size : messages) {
      JobOptions options{.ranks_per_host = ranks_per_host, .environment = chosen.environment};
      options.environment.insert(options.environment.end(), size.environment.begin(), size.environment.end());
      const std::vector<AllGatherTime> found =
          times(cluster, {program}, options, chosen.name + ", " + size.name, bytes_per_rank, iterations);
      if (best.empty()) best = found;
      for (std::size_t i = 0; i < best.size(); ++i) {
        if (found[i].seconds < best[i].seconds) best[i] = found[i];
      }
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
