// benchmarks.h: every benchmark, one file each; main.cc lists them.
#pragma once

#include <string>
#include <vector>

#include "bench/harness.h"
#include "moesaic/comm/transport.h"

namespace moesaic::bench {

// Which part of a benchmark on a cluster to run; what is empty (or 0) is as the size says.
struct ClusterOptions {
  std::vector<std::string> layouts;  // "4x2": hosts x ranks per host
  std::vector<std::string> rates;    // "100mbit"
  std::vector<std::string> tokens;   // per rank
  std::vector<std::string> variants;
  int rounds = 0;
  std::string checkpoints;  // where starting points are kept for the next time; empty: nowhere
};

// `peers_python` runs ZipNN; `traces`: the folder where recorded weights are kept.
Benchmark codec_methods(const std::string& peers_python, const std::string& traces);
Benchmark collectives();
Benchmark exchange(const ClusterOptions& options);
Benchmark exchange_step(const std::string& peers_python, const ClusterOptions& options);
// `traces`: as of codec_methods().
Benchmark gather(const std::string& python, const std::string& traces, const ClusterOptions& options);
Benchmark gates();
Benchmark kernels();
// transformers runs in `python`, the other peers in `peers_python`.
Benchmark moe_layer(const std::string& python, const std::string& peers_python);
Benchmark overlap();
Benchmark routes();
Benchmark step(const std::string& python, const ClusterOptions& options);
Benchmark train_tokens(const std::string& python);  // which runs the peers

// The parts of benchmarks that every rank of an MPI job runs (mpi_job.h).
void collectives_under_mpi(Report& report, Transport& transport, const std::string& size);
void overlap_under_mpi(Report& report, Transport& transport, const std::string& size);

// Elements of a rank's part.
std::vector<std::int64_t> collective_sizes(const std::string& size);

}  // namespace moesaic::bench
