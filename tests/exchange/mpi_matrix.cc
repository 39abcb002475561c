// Runs the exchange checks under mpirun, on every topology of the matrix for this number of ranks.
#include <exception>

#include "moesaic/comm/mpi.h"
#include "tests/comm/mpi_failure.h"
#include "tests/comm/worlds.h"
#include "tests/exchange/checks.h"

using namespace moesaic;

int main() {
  std::unique_ptr<Transport> transport;
  try {
    transport = make_mpi_transport();
    for (const Topology& topology : topologies_of(transport->world_size())) {
      Communicator world(*transport, topology, kTestTimeout);
      try {
        exchange_checks::check_all_routes(world);
        exchange_checks::check_two_in_flight(world);
        exchange_checks::check_all_cases(world, {Route::kRailDedup, 3, true});
        exchange_checks::check_all_cases(world, {Route::kLeader, 2, true, /*fp32_sums=*/true});
        exchange_checks::check_all_cases(world, {std::nullopt, 3, true});
      } catch (const exchange_checks::Mismatch& e) {
        throw exchange_checks::Mismatch(fmt::format("{}: {}", describe(topology), e.what()));
      }
    }
  } catch (const std::exception& e) {
    return moesaic::end_failed_job(transport, e);
  }
  return 0;
}
