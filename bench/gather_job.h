// gather_job.h: every way to gather recorded weights, on a Cluster: `moesaic_bench gather_job` on every rank.
//
// The expert units of a weight trace, as five steps of training had them, are cut evenly over the ranks. A
// round of a way gathers the first four steps, untimed, so that ranks hold what they would hold in training,
// words and tables, and then, timed, every unit of the fifth. The ways take turns in one job. Every rank
// checks every word it got.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/cluster.h"

namespace moesaic::bench {

struct GatherRound {
  std::string way;  // "raw", "momentum", "momentum rank"
  double seconds = 0;
  std::int64_t nic_bytes = 0;      // sent or received, whichever is more, by the host where it was most
  std::int64_t claimed_bytes = 0;  // what messages must bring to that host, or take from it, without headers
  double bits_per_weight = 0;      // of coded messages
  double kept_bytes_per_weight = 0;  // per rank, of the whole units
  double cpu_seconds = 0;            // of all ranks together
  double codec_seconds = 0;          // encoding and decoding, on the rank where it took longest
  double relative_error = 0;         // of the words; 0 where lossless
};

struct GatherJob {
  std::filesystem::path trace;
  std::int64_t step = 0;  // the fifth
  int rounds = 1;
  std::vector<std::string> ways;  // some of gather_ways()
};

// Words of each expert unit of the trace, and of all ways the rounds.
std::vector<std::int64_t> traced_words(const GatherJob& job);
std::vector<GatherRound> gather_rounds(Cluster& cluster, int ranks_per_host, const GatherJob& job);

// The names of the ways, raw first.
std::vector<std::string> gather_ways();

// The body of the job.
void run_gather_job(const GatherJob& job);

}  // namespace moesaic::bench
