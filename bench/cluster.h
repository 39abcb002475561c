// cluster.h: hosts on this machine, joined only by links of a stated rate, for claims about bytes and
// networks.
//
// A Cluster is a `tools/cluster up --hold` that this process keeps alive by a pipe. However the process ends
// (return, exception, SIGINT, SIGKILL), the pipe closes, and the hosts go with all that runs on them. It
// needs root and network namespaces; where those are missing the constructor throws, saying what.
// docs/cluster.md.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/nic_bytes.h"

namespace moesaic::bench {

class ChildProcess;

enum class Launcher {
  kMpirun,  // one MPI job over all hosts
  kTorch,   // plain processes with RANK, WORLD_SIZE, MASTER_ADDR and so on in their environment
};

struct JobOptions {
  int ranks_per_host = 1;
  Launcher launcher = Launcher::kMpirun;
  double timeout_s = 300;                     // then the job is ended
  std::vector<std::string> environment = {};  // "NAME=value", for every rank
};

struct JobResult {
  std::vector<nlohmann::json> lines;  // the objects that the ranks printed; their other lines went to stderr
  std::vector<NicBytes> nic;          // per host, over the whole job; mpirun itself adds some 10 KB
};

class Cluster {
 public:
  // rate: "100mbit", "2.5gbit", "unlimited". Throws Error with the reason where it cannot be.
  Cluster(int hosts, const std::string& rate);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  void set_rate(const std::string& rate);

  // words[0] is looked up in PATH. Throws Error when the job fails or runs out of time (its last words are on
  // stderr), or when a rank prints an object with an "error".
  JobResult run(const std::vector<std::string>& words, const JobOptions& options);

 private:
  std::vector<NicBytes> counters() const;
  std::vector<std::string> tool(const std::string& verb) const;

  std::string name_;
  std::unique_ptr<ChildProcess> holder_;
};

}  // namespace moesaic::bench
