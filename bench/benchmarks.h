// benchmarks.h: every benchmark, one file each; main.cc lists them.
#pragma once

#include "bench/harness.h"
#include "moesaic/comm/transport.h"

namespace moesaic::bench {

// `peers_python` runs ZipNN; `traces`: the folder where recorded weights are kept.
Benchmark codec_methods(const std::string& peers_python, const std::string& traces);
Benchmark collectives();
Benchmark kernels();
Benchmark moe_layer();
Benchmark overlap();
Benchmark train_tokens(const std::string& python);  // which runs the peer

// The parts of benchmarks that every rank of an MPI job runs (mpi_job.h).
void collectives_under_mpi(Report& report, Transport& transport, const std::string& size);
void overlap_under_mpi(Report& report, Transport& transport, const std::string& size);

// Elements of a rank's part.
std::vector<std::int64_t> collective_sizes(const std::string& size);

}  // namespace moesaic::bench
