// The exchange checks under mpirun. `exchange_mpi_test`: all, on every topology of the matrix for this number
// of ranks, whatever hosts they are on. `exchange_mpi_test HOSTS`: a few, on the topology of that many hosts.
#include <exception>

#include "moesaic/comm/mpi.h"
#include "tests/comm/mpi_failure.h"
#include "tests/comm/worlds.h"
#include "tests/exchange/checks.h"

namespace moesaic::exchange_checks {
namespace {

void check(Transport& transport, const Topology& topology, const std::function<void(Communicator&)>& body) {
  Communicator world(transport, topology, kTestTimeout);
  try {
    body(world);
    check_two_in_flight(world);
  } catch (const Mismatch& e) {
    throw Mismatch(fmt::format("{}: {}", describe(topology), e.what()));
  }
}

void run(Transport& transport, int argc, char** argv) {
  if (argc > 1) {
    const Topology topology = discover_topology(transport);
    expect_equal("hosts", topology.num_nodes(), std::stoi(argv[1]));
    return check(transport, topology, check_few_cases);
  }
  for (const Topology& topology : topologies_of(transport.world_size())) {
    check(transport, topology, [](Communicator& world) {
      check_all_routes(world);
      check_all_cases(world, {Route::kRailDedup, 3, true});
      check_all_cases(world, {Route::kLeader, 2, true, /*fp32_sums=*/true});
      check_all_cases(world, {std::nullopt, 3, true});
    });
  }
}

}  // namespace
}  // namespace moesaic::exchange_checks

int main(int argc, char** argv) {
  std::unique_ptr<moesaic::Transport> transport;
  try {
    transport = moesaic::make_mpi_transport();
    moesaic::exchange_checks::run(*transport, argc, argv);
  } catch (const std::exception& e) {
    return moesaic::end_failed_job(transport, e);
  }
  return 0;
}
