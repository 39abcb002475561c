// cluster_steps.h: training steps on a Cluster, ours and those of peers, that take turns.
//
// All of them go on from one checkpoint, made by `train_on_threads` on this machine without a network: so
// steps are timed where weights move as in a real run, and a slow link need not carry the steps before. A
// turn is a job of its own. It makes some steps to warm up (the first one allocates, and meets no reference
// of a codec), then some that are timed, between barriers. What start-up takes does not count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/cluster.h"
#include "moesaic/train/config.h"

namespace moesaic::bench {

// One step, as a job reports it by a line of JSON: "step" (from 1), "seconds", "loss", "nic_bytes", and from
// ours "phases": {name: seconds} and "codec": {name: number}.
struct ClusterStep {
  std::int64_t step = 0;
  double seconds = 0;
  double loss = 0;
  std::int64_t nic_bytes = 0;  // sent or received, whichever is more, by the host where it was most
  // Means over the ranks, seconds; zeros from a peer.
  double gather_exposed = 0, reduce_exposed = 0;        // the compute thread stood still for them
  double gather_background = 0, reduce_background = 0;  // other threads were at work on them
  // Of coded messages, zero where there were none.
  double weight_bits = 0;      // per weight
  double gradient_bits = 0;    // per gradient, not counting blocks of zeros, which are not sent
  double kept_per_weight = 0;  // bytes of references on the rank that keeps most, per weight of coded units
};

struct Turn {
  std::filesystem::path config_file, checkpoint;
  int ranks_per_host = 1;
  int warm_up_steps = 0, timed_steps = 1;
};

// The timed steps of one turn of ours, under MPI, or of FSDP2 in one of its modes (peers/fsdp2_steps.py).
std::vector<ClusterStep> our_steps(Cluster& cluster, const Turn& turn);
std::vector<ClusterStep> fsdp2_steps(Cluster& cluster, const Turn& turn, const std::string& python,
                                     const std::string& mode);

// Trains `steps` steps from the seed, on ranks that are threads, saves into `checkpoints` and returns the
// checkpoint. In a child process; each step is told on stderr.
std::filesystem::path train_on_threads(const std::filesystem::path& config_file, int steps,
                                       const std::filesystem::path& checkpoints);

// The bodies of those children: `moesaic_bench cluster_steps` (on every rank) and `moesaic_bench train_to`.
void run_cluster_steps(const Turn& turn);
void run_train_to(const std::filesystem::path& config_file, int steps,
                  const std::filesystem::path& checkpoints);

}  // namespace moesaic::bench
