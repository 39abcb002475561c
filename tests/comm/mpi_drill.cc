// Jobs that go wrong on purpose; test_mpi_losses.py looks at how they end. Usage: comm_mpi_drill HOW
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"

using namespace moesaic;
using namespace std::chrono_literals;

namespace {

void fail_as_told(Transport& transport, const std::string& how) {
  const int rank = transport.rank();
  Communicator world(transport, Topology::one_node(transport.world_size()),
                     how == "silent" ? 500ms : 60'000ms);
  barrier(world);
  if (how == "killed_before_group" || how == "killed_mid_step") {
    std::vector<std::int64_t> counts(1'000'000, 1);
    if (how == "killed_mid_step") all_reduce(world, std::span(counts));
    if (rank == 1) std::raise(SIGKILL);
    if (how == "killed_before_group" && rank < 2) {
      Communicator group = world.split(std::vector<int>{0, 1}, 1);
      barrier(group);
    }
    for (;;) all_reduce(world, std::span(counts));
  } else if (how == "throws") {
    if (rank == 1) throw NonFinite("rank 1 met a NaN");
    barrier(world);
  } else if (how == "silent") {
    if (rank == 1) std::this_thread::sleep_for(60s);
    barrier(world);
  } else if (how == "sizes_differ" || how == "sizes_differ_in_pieces") {
    // Rank 1 says it has 5 more bytes for each peer than they expect.
    const std::int64_t sent = rank == 1 ? 2005 : 2000;
    std::vector<std::int64_t> send_bytes(static_cast<std::size_t>(world.size()), sent),
        receive_bytes(send_bytes.size(), 2000);
    if (rank == 1) receive_bytes[1] = sent;
    std::vector<std::byte> send(static_cast<std::size_t>(sent) * send_bytes.size());
    std::vector<std::byte> receive(2000 * send_bytes.size() + (rank == 1 ? 5 : 0));
    all_to_all_v(world, send, send_bytes, receive, receive_bytes);
    barrier(world);
  } else if (how == "abort_in_background") {
    const std::vector<std::int64_t> bytes(static_cast<std::size_t>(world.size()), 4);
    const std::vector<std::byte> mine(4);
    std::vector<std::byte> all(4 * bytes.size());
    if (rank == 1) {
      std::this_thread::sleep_for(200ms);
      throw Error("rank 1 gives up");
    }
    start_all_gather_v(world, mine, bytes, all).wait();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  auto transport = make_mpi_transport({.piece_bytes = how == "sizes_differ_in_pieces" ? 1000 : 1 << 20});
  try {
    fail_as_told(*transport, how);
  } catch (const std::exception& e) {
    const auto* lost = dynamic_cast<const PeerLost*>(&e);
    const char* kind = lost ? "PeerLost" : dynamic_cast<const CorruptData*>(&e) ? "CorruptData" : "error";
    std::fprintf(stderr, "%s on rank %d: %s\n", kind, transport->rank(), e.what());
    std::fflush(stderr);
    transport->abort(e.what());
    transport.reset();
    return 1;
  }
  return 0;
}
