// block_schedule.h: one rank's schedule of a route: from steps (route_steps.h) and sizes to operations.
//
// Local; pure. Blocks that a message needs and that do not lie back to back are copied together first; a
// message whose blocks do not end back to back is taken apart after it is in. Nothing else is copied. Own
// blocks (from a rank to itself) are left to the caller. Operations depend on what they read, and, past 64
// messages between two ranks, on the message 64 before: nothing waits in a circle, for a step only needs
// blocks of earlier steps. InvalidArgument: a step that needs a block which is not there.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/comm/schedule.h"
#include "moesaic/exchange/route_steps.h"

namespace moesaic {

// Sizes of all blocks, equal on all ranks. X ranks, N nodes.
struct BlockBytes {
  std::vector<std::int64_t> of_ranks;  // [X*X] from * X + to
  std::vector<std::int64_t> of_nodes;  // [X*N] rank * N + node: between that rank and that node, either way

  std::int64_t of(const Block& block, const Topology& topology) const { return at(index(block, topology)); }

  // Both as one row, of_ranks first.
  static std::size_t index(const Block& block, const Topology& topology);
  std::int64_t at(std::size_t index) const {
    return index < of_ranks.size() ? of_ranks[index] : of_nodes[index - of_ranks.size()];
  }
};

// Where in a buffer the blocks of a rank begin, in bytes. Empty: there are none of that kind.
struct BlockPlaces {
  std::vector<std::int64_t> of_ranks;  // [X] by the rank at the other end
  // kInput: [N] by node. kOutput: [N] by node for sums; [X] by rank for kToNode blocks, which stay where they
  // come in if this is empty.
  std::vector<std::int64_t> of_nodes;
};

// What the caller does when a kNotify names `rank`: rows of `node_block` to the ranges of the ranks that
// shall have them (kSpread), or their sums from there to it (kSum).
struct NodeWork {
  int rank = -1;
  Range node_block;
  std::vector<Range> of_ranks;  // by place in this node
};

struct BlockSchedule {
  Schedule schedule;
  std::int64_t staging_bytes = 0;  // for what NodeWork reads and writes
  std::vector<NodeWork> node_work;

  const NodeWork& work_for(int rank) const;
};

// kInput: blocks that begin at `rank`; kOutput: those that end there.
BlockSchedule block_schedule(const Topology& topology, int rank, const Steps& steps, const BlockBytes& bytes,
                             const BlockPlaces& input, const BlockPlaces& output);

}  // namespace moesaic
