#include "bench/mpi_job.h"

#include <fmt/format.h>

#include <cstdio>

#include "bench/benchmarks.h"
#include "bench/child_process.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {

void add_rows_of_mpi_job(Report& report, int ranks, const std::string& benchmark, const std::string& size) {
  // As many ranks as cores are asked for, but a container may look smaller to mpirun than it is.
  ChildProcess job("mpirun",
                   {"mpirun", "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none", own_path(),
                    "under_mpi", benchmark, size},
                   {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  report.add_all(job.receive());
}

int run_under_mpi(const std::string& benchmark, const std::string& size) {
  const std::unique_ptr<Transport> transport = make_mpi_transport();
  try {
    Report report(benchmark, 1, nullptr);
    if (benchmark == "collectives") {
      collectives_under_mpi(report, *transport, size);
    } else if (benchmark == "overlap") {
      overlap_under_mpi(report, *transport, size);
    } else {
      throw InvalidArgument("no such benchmark runs under MPI: " + benchmark);
    }
    if (transport->rank() == 0) fmt::print("{}\n", report.json().dump());
    std::fflush(stdout);
  } catch (const std::exception& error) {
    fmt::print(stderr, "moesaic_bench under MPI: {}\n", error.what());
    std::fflush(stderr);
    transport->abort(error.what());
    return 2;
  }
  return 0;
}

}  // namespace moesaic::bench
