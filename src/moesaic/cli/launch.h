// launch.h: run a function on every rank of a job: threads of this process, or the processes of an MPI job.
#pragma once

#include <functional>

#include "moesaic/comm/communicator.h"
#include "moesaic/train/config.h"

namespace moesaic::cli {

// True inside mpirun or srun (their environment variables say so).
bool under_mpi();

// Ranks of the MPI job this process belongs to, where the environment says so; else -1. Usable before
// launch().
int mpi_size();

// True on the process that talks to the user: always for threads, rank 0 under MPI. Usable before launch().
bool speaks();

// Runs body(world) on config.parallel.ranks threads, or on this process's MPI rank, with torch limited to
// threads_per_rank threads. Throws what a rank threw; under MPI the whole job is then ended.
void launch(const Config& config, const std::function<void(Communicator& world)>& body);

}  // namespace moesaic::cli
