// collective_checks.h: what every collective owes on every world, whatever the transport: run by comm_test on
// threads and by comm_mpi_test on processes. A check throws when a result differs from its oracle; every rank
// can compute everyone's input, so oracles are plain loops that model the order of the sums.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moesaic/comm/communicator.h"

namespace moesaic {

struct CollectiveCheck {
  std::string name;
  std::function<void(Communicator&)> run;  // collective
};

const std::vector<CollectiveCheck>& collective_checks();

}  // namespace moesaic
