// Runs the collective checks under mpirun, on every topology of the matrix for this number of ranks.
#include <exception>
#include <string>

#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/mpi_failure.h"
#include "tests/comm/worlds.h"

using namespace moesaic;

namespace {

void run(Transport& transport) {
  const Topology here = discover_topology(transport);
  if (here.num_nodes() != 1) throw Error(fmt::format("one host, but {} nodes were found", here.num_nodes()));
  for (const Topology& topology : topologies_of(transport.world_size())) {
    Communicator world(transport, topology, kTestTimeout);
    for (const CollectiveCheck& check : collective_checks()) {
      try {
        check.run(world);
      } catch (const std::exception& e) {
        throw Error(fmt::format("{} on {}: {}", check.name, describe(topology), e.what()));
      }
    }
  }
}

void expect_refused(const MpiOptions& options, const std::string& expected) {
  try {
    make_mpi_transport(options);
  } catch (const InvalidArgument& e) {
    if (std::string(e.what()).find(expected) != std::string::npos) return;
  }
  throw Error("expected InvalidArgument: " + expected);
}

}  // namespace

int main(int argc, char** argv) {
  MpiOptions options;
  if (argc == 3 && std::string(argv[1]) == "--piece-bytes") options.piece_bytes = std::stoll(argv[2]);
  std::unique_ptr<Transport> transport;
  try {
    expect_refused({.piece_bytes = 0}, "piece_bytes 0");
    transport = make_mpi_transport(options);
    expect_refused({}, "only once");
    run(*transport);
  } catch (const std::exception& e) {
    return moesaic::end_failed_job(transport, e);
  }
  return 0;
}
