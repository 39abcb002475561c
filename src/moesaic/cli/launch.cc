#include "moesaic/cli/launch.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "moesaic/comm/inproc.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rank_prefix.h"
#include "moesaic/train/threads.h"

namespace moesaic::cli {
namespace {

// The first of `names` that is set, as a number; -1 when none is.
int number_from_environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  return -1;
}

Topology topology_of(const Config& config, int world_size) {
  const auto per_node = static_cast<int>(config.comm.ranks_per_node);
  return per_node > 0 ? Topology::uniform(world_size, per_node) : Topology::one_node(world_size);
}

std::chrono::milliseconds timeout_of(const Config& config) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(config.comm.timeout_s * 1000.0));
}

// How long a rank that lost a peer leaves the others to say whom they wait for.
constexpr std::chrono::milliseconds kLastWords{2000};

void launch_threads(const Config& config, const std::function<void(Communicator&)>& body) {
  const auto ranks = static_cast<int>(config.parallel.ranks);
  run_inproc(ranks, [&](Transport& transport) {
    limit_compute_threads(static_cast<int>(config.parallel.threads_per_rank));
    Communicator world(transport, topology_of(config, ranks), timeout_of(config));
    body(world);
  });
}

void launch_mpi(const Config& config, const std::function<void(Communicator&)>& body) {
  for (const EnvironmentSetting& setting : mpi_environment()) {
    setenv(setting.name, setting.value, /*overwrite=*/0);
  }
  const std::unique_ptr<Transport> transport = make_mpi_transport();
  try {
    const int size = transport->world_size();
    limit_compute_threads(static_cast<int>(config.parallel.threads_per_rank));
    Communicator world(
        *transport,
        config.comm.ranks_per_node > 0 ? topology_of(config, size) : discover_topology(*transport),
        timeout_of(config));
    body(world);
  } catch (const std::exception& error) {
    // Said here, before the abort: the launcher may kill this process at any moment after it.
    fmt::print(stderr, "moesaic: {}\n", with_rank(transport->rank(), error.what()));
    std::fflush(stderr);
    // The ranks that wait for a lost one directly name it; one that waits for those may be the first to give
    // up.
    if (dynamic_cast<const PeerLost*>(&error) != nullptr)
      std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(timeout_of(config) / 4, kLastWords));
    transport->abort(error.what());
    throw;
  }
}

}  // namespace

bool under_mpi() { return number_from_environment({"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) >= 0; }

int mpi_size() { return number_from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}); }

bool speaks() { return number_from_environment({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) <= 0; }

void launch(const Config& config, const std::function<void(Communicator&)>& body) {
  // A batch script is one task; srun without an MPI plug-in starts many that know nothing of each other.
  const int tasks = number_from_environment({"SLURM_STEP_NUM_TASKS"});
  require(under_mpi() || tasks <= 1, "{} tasks were started without MPI; use `srun --mpi=pmix` or mpirun",
          tasks);
  if (under_mpi()) {
    launch_mpi(config, body);
  } else {
    launch_threads(config, body);
  }
}

}  // namespace moesaic::cli
