// mpi.h: ranks are processes of an MPI job (mpirun, srun).
//
// All MPI calls are made by one thread of its own, so that messages progress while the others compute; it
// sleeps when nothing moves. No MPI type leaks out of mpi.cc.
#pragma once

#include <memory>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/comm/transport.h"

namespace moesaic {

// Starts MPI in this process (once; InvalidArgument the second time). The destructor finalises it.
// After abort() or a lost peer the destructor ends the job with MPI_Abort instead.
std::unique_ptr<Transport> make_mpi_transport();

// Nodes found by hostname; collective over the job. Call before any Communicator is in use.
Topology discover_topology(Transport& mpi);

}  // namespace moesaic
