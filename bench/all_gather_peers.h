// all_gather_peers.h: how fast others all-gather the same bytes on a Cluster: the baselines of gathers.
//
// Each call starts jobs of its own and gives one result per entry of `bytes_per_rank`. A time is the median
// over `iterations` of the slowest rank's; the programs check every byte, and Error is thrown where one is
// wrong. Nothing of ours runs meanwhile: on few cores, ranks that wait would slow the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cluster.h"

namespace moesaic::bench {

struct AllGatherTime {
  std::int64_t bytes_per_rank = 0;
  double seconds = 0;
  std::int64_t nic_received_bytes = 0;  // per iteration, by the host that received most
  std::string how;                      // "ring, eager 4 MiB"
};

// MPI_Allgatherv by the fastest, for each size, of Open MPI's algorithms (its own choice, ring, neighbor
// exchange, Bruck's), each with its default TCP message sizes and with eager limits of 4 MiB.
std::vector<AllGatherTime> best_mpi_all_gather(Cluster& cluster, int ranks_per_host,
                                               const std::vector<std::int64_t>& bytes_per_rank,
                                               int iterations);

// torch.distributed.all_gather_into_tensor over gloo. `python` has torch.
std::vector<AllGatherTime> gloo_all_gather(Cluster& cluster, const std::string& python, int ranks_per_host,
                                           const std::vector<std::int64_t>& bytes_per_rank, int iterations);

}  // namespace moesaic::bench
