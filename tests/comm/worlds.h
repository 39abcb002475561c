// worlds.h: runs a test body on every world that an algorithm must work on: {1,2,3,4,7} ranks on {1,2,3}
// nodes, nodes contiguous (and uneven) and interleaved. For the tests of every room that communicates.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/comm/inproc.h"

namespace moesaic {

// Long enough for a sanitizer on a busy machine; tests of lost peers set their own.
inline constexpr std::chrono::milliseconds kTestTimeout{60'000};

// "7 ranks on nodes 0 0 0 1 1 2 2"
inline std::string describe(const Topology& topology) {
  std::string text = fmt::format("{} ranks on nodes", topology.world_size());
  for (int rank = 0; rank < topology.world_size(); ++rank) text += fmt::format(" {}", topology.node_of(rank));
  return text;
}

// Every topology of `world_size` ranks in the matrix.
inline std::vector<Topology> topologies_of(int world_size) {
  std::vector<Topology> topologies;
  for (int num_nodes = 1; num_nodes <= 3 && num_nodes <= world_size; ++num_nodes) {
    std::vector<int> contiguous, interleaved;
    for (int rank = 0; rank < world_size; ++rank) {
      contiguous.push_back(rank * num_nodes / world_size);
      interleaved.push_back(rank % num_nodes);
    }
    topologies.push_back(Topology::from_nodes(contiguous));
    if (interleaved != contiguous) topologies.push_back(Topology::from_nodes(interleaved));
  }
  return topologies;
}

// Runs body(world) on one thread per rank. An exception on any rank leaves with "rank R: " before its
// message.
inline void run_world(const Topology& topology, const std::function<void(Communicator&)>& body,
                      std::chrono::milliseconds timeout = kTestTimeout) {
  run_inproc(topology.world_size(), [&](Transport& transport) {
    Communicator world(transport, topology, timeout);
    body(world);
  });
}

// The whole matrix. Fails the test, naming the world, when a rank throws.
inline void for_each_world(const std::function<void(Communicator&)>& body) {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    for (const Topology& topology : topologies_of(world_size)) {
      SCOPED_TRACE(describe(topology));
      EXPECT_NO_THROW(run_world(topology, body));
    }
  }
}

}  // namespace moesaic
