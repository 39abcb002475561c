// exchange_step_job.h: one program's passes through an MoE layer under expert parallelism, as a job on a
// Cluster.
//
// Every rank reads inputs.safetensors (layer_files.h) of the job's folder and takes its part: tokens
// rank * T/W .., experts rank * E/W ... After each timed pass rank 0 prints {"seconds", "nic_bytes"} and,
// where it is known, {"route"}: between barriers, of the busiest card. After the last one every rank leaves
// results-RANK.safetensors: y, d_x of its tokens, d_w_in, d_w_out of its experts, and its summand of
// d_router.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/cluster.h"
#include "bench/moe_layer_case.h"

namespace moesaic::bench {

struct ExchangeStepJob {
  std::filesystem::path folder;
  LayerCase layer;  // of all ranks together
  int ranks = 1, ranks_per_host = 1;
  int warm_up = 0, passes = 1;
  // Of ours: the name of a route, or "auto"; into how many chunks rows are cut, 0 for as many as pay.
  std::string route = "auto";
  int chunks = 0;
};

struct ExchangeStep {
  double seconds = 0, nic_bytes = 0;
  std::string route;
};

// Ours under MPI, or DeepSpeed over gloo (peers/exchange_deepspeed.py). The timed passes.
std::vector<ExchangeStep> our_passes(Cluster& cluster, const ExchangeStepJob& job);
std::vector<ExchangeStep> deepspeed_passes(Cluster& cluster, const ExchangeStepJob& job,
                                           const std::string& python);
// What the ranks of the last job left, put together.
LayerResults results_of_ranks(const ExchangeStepJob& job);

// The arguments of `moesaic_bench exchange_step_job`, the body of every rank of ours: a job's file.
void run_exchange_step_job(const std::filesystem::path& job_file);

}  // namespace moesaic::bench
