#include "bench/cluster.h"

#include <fmt/format.h>
#include <unistd.h>

#include "bench/child_process.h"

namespace moesaic::bench {
namespace {

// One process may have several clusters.
std::string new_name() {
  static int count = 0;
  return fmt::format("bench_{}_{}", getpid(), ++count);
}

}  // namespace

Cluster::Cluster(int hosts, const std::string& rate) : name_(new_name()) {
  std::vector<std::string> words = tool("up");
  words.insert(words.end(), {"--hosts=" + std::to_string(hosts), "--rate=" + rate, "--hold"});
  holder_ = std::make_unique<ChildProcess>("cluster up", words);
  holder_->receive();  // it is up, or why not
}

Cluster::~Cluster() = default;

std::vector<std::string> Cluster::tool(const std::string& verb) const {
  return {MOESAIC_PYTHON, MOESAIC_SOURCE_DIR "/tools/cluster", verb, "--name", name_};
}

void Cluster::set_rate(const std::string& rate) {
  std::vector<std::string> words = tool("rate");
  words.push_back(rate);
  ChildProcess("cluster rate", words).receive_or_end();
}

std::vector<NicBytes> Cluster::counters() const {
  const nlohmann::json hosts = ChildProcess("cluster counters", tool("counters")).receive()["hosts"];
  std::vector<NicBytes> all;
  for (const nlohmann::json& host : hosts) all.push_back({host["tx_bytes"], host["rx_bytes"]});
  return all;
}

JobResult Cluster::run(const std::vector<std::string>& words, const JobOptions& options) {
  std::vector<std::string> all = tool("run");
  all.insert(all.end(), {"--ranks-per-host", std::to_string(options.ranks_per_host), "--timeout",
                         fmt::format("{}", options.timeout_s), "--launcher",
                         options.launcher == Launcher::kTorch ? "torch" : "mpirun"});
  for (const std::string& setting : options.environment) all.insert(all.end(), {"--env", setting});
  all.emplace_back("--");
  all.insert(all.end(), words.begin(), words.end());

  const std::vector<NicBytes> before = counters();
  JobResult result;
  ChildProcess job("cluster run", all);
  for (nlohmann::json line = job.receive_or_end(); !line.is_null(); line = job.receive_or_end()) {
    result.lines.push_back(std::move(line));
  }
  result.nic = counters();
  for (std::size_t host = 0; host < before.size(); ++host) {
    result.nic[host].sent -= before[host].sent;
    result.nic[host].received -= before[host].received;
  }
  return result;
}

}  // namespace moesaic::bench
