// mpi.h: ranks are processes of an MPI job (mpirun, srun).
//
// MPI is called by one thread at a time: by the one that waits for messages, and once that sleeps (when
// nothing has moved for a while) by a thread of the transport's own. A message moves while some thread of
// this rank is in wait_for_progress(), not before. No MPI type leaks out of mpi.cc. While no message is under
// way a program may make MPI calls of its own, from one thread at a time, where MPI_Query_thread says at
// least serialized.
//
// Errors: CorruptData at the receiver when the sizes of a message differ (the sender may not learn of it;
// when only one side's size exceeds MpiOptions::piece_bytes the two never meet, and both run into their
// timeout). PeerLost after abort(), after an error of MPI, and after a message was given up before it was
// done (its buffer must not be touched again, and MPI cannot take a message back: the transport is of no more
// use). A killed process is the launcher's to find: Open MPI's mpirun ends the job and names the rank.
//
// abort() sends nothing: this rank's calls throw from then on, and destroying the transport calls MPI_Abort,
// which ends every process of the job, this one included, with status 1. So after an exception: abort(), say
// what happened, flush, destroy.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "moesaic/comm/topology.h"
#include "moesaic/comm/transport.h"

namespace moesaic {

struct MpiOptions {
  // Longer messages travel in pieces of this size (MPI counts are 32-bit). Equal on all ranks.
  std::int64_t piece_bytes = std::int64_t{1} << 30;
};

// Starts MPI in this process (once; InvalidArgument the second time). The destructor finalises it, together
// with the other ranks'; after abort() or a lost peer it ends the job with MPI_Abort instead.
std::unique_ptr<Transport> make_mpi_transport(MpiOptions options = {});

// What a program does well to have in its environment before that, where the user has not set it. Open MPI
// over TCP asks before it sends more than 64 KiB, and the question waits behind bulk data that is on its way:
// on a slow link a gather then takes up to twice its time. With these, 4 MiB are sent at once.
struct EnvironmentSetting {
  const char* name;
  const char* value;
};
std::span<const EnvironmentSetting> mpi_environment();

// What the library calls itself: "Open MPI v4.1.4". Usable before MPI is started.
std::string mpi_library_version();

// Nodes found by hostname; collective over the job. Call before any Communicator is in use. Nodes are
// numbered in the order of their lowest ranks.
Topology discover_topology(Transport& mpi);

}  // namespace moesaic
