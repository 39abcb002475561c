// environment.h: where and with what a run was made, for its report: run_dir/environment.json.
//
// {"invocations": [{started, from_step, ranks, threads_per_rank, nodes, transport, hosts, cpu, cores,
// memory_bytes, system, moesaic, torch, mpi, compiler}]}, one per start of `train`, the first one first.
// hosts: by rank. The rest is of rank 0's machine.
#pragma once

#include <filesystem>
#include <string>

#include "moesaic/comm/communicator.h"
#include "moesaic/train/config.h"

namespace moesaic::cli {

// What `git describe` said when this was built; "unknown" without git.
extern const char* const kGitVersion;

std::string host_name();

// "model name : X" of the first processor; empty where the system does not say.
std::string cpu_name();

// Collective; rank 0 writes. `from_step`: steps done when this invocation began. IoError on every rank when
// rank 0 cannot write.
void record_environment(Communicator& world, const Config& config, std::int64_t from_step,
                        const std::filesystem::path& file);

}  // namespace moesaic::cli
