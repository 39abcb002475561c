// mpi_job.h: this program under mpirun.
#pragma once

#include <string>

#include "bench/harness.h"

namespace moesaic::bench {

// Starts `ranks` processes of this program as `moesaic_bench under_mpi BENCHMARK SIZE` and adds the rows of
// rank 0.
void add_rows_of_mpi_job(Report& report, int ranks, const std::string& benchmark, const std::string& size);

// What each of them runs: the body of the benchmark on every rank; rank 0 prints its report.
int run_under_mpi(const std::string& benchmark, const std::string& size);

}  // namespace moesaic::bench
