// mpi_failure.h: how a test program under MPI ends when a check fails on one rank: the others do not wait.
#pragma once

#include <cstdio>
#include <exception>
#include <memory>

#include "moesaic/comm/transport.h"

namespace moesaic {

// Says why, ends the job, and returns the program's status. `transport`: null where there is none yet.
inline int end_failed_job(std::unique_ptr<Transport>& transport, const std::exception& error) {
  std::fprintf(stderr, "rank %d: %s\n", transport ? transport->rank() : -1, error.what());
  std::fflush(stderr);
  if (transport) transport->abort(error.what());
  transport.reset();
  return 1;
}

}  // namespace moesaic
