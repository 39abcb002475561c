// route_steps.h: what a route does, of all ranks, as data: whose bytes move where, one hop after another.
//
// Local; pure functions of the topology. A route is written here once. One rank's schedule follows from its
// steps (block_schedule.h), and so does the price of the whole (route_price.h).
//
// X ranks of an exchange group. A block is what belongs together from its first place to its last: rows,
// lists or values from one rank to another, or one copy of a row for several ranks of a node.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/exchange/route.h"

namespace moesaic {

struct Block {
  enum class Kind : std::uint8_t {
    kRanks,     // from a rank to a rank
    kToNode,    // from a rank to all ranks of node `to` together, each row once
    kFromNode,  // the sums of the ranks of node `from`, to a rank
  };
  Kind kind = Kind::kRanks;
  int from = 0, to = 0;
  bool operator==(const Block&) const = default;
};

struct Step {
  enum class Kind : std::uint8_t {
    kMove,    // one message: `blocks`, back to back
    kSpread,  // at rank `from`: the kToNode block becomes a block for each rank of the node
    kSum,     // at rank `from`: the node's blocks for a rank become the kFromNode block
  };
  Kind kind = Kind::kMove;
  int phase = 0;  // steps of one phase do not wait for each other; sums and spreads begin the next phase
  int from = 0, to = 0;
  std::vector<Block> blocks;
};

// Steps in an order in which each finds done what it needs. `rank`: only those that this rank has a part in;
// kAllRanks: all. Between two ranks messages meet in this order. Messages of equal standing go to rank+1,
// rank+2, ..., so that no rank is everyone's first target.
using Steps = std::vector<Step>;
inline constexpr int kAllRanks = -1;

Steps flat_steps(const Topology& topology, int rank = kAllRanks);

// Own node direct. Others: to the leader (the node's first rank), which puts its node's blocks in order of
// destination; one message to each other leader; from there to each rank. HetuMoE (arXiv 2203.14685).
Steps leader_steps(const Topology& topology, int rank = kAllRanks);

// Own node direct. Others: all for one node to the own counterpart there (topology.h), which hands each rank
// its block. `with_node_blocks`: the counterpart also gets a kToNode block, for itself.
Steps rail_steps(const Topology& topology, int rank = kAllRanks, bool with_node_blocks = false);

// Own node direct. Others: one kToNode block to the own counterpart there, which spreads it.
Steps rail_dedup_steps(const Topology& topology, int rank = kAllRanks);
// The way back: blocks meet at the counterpart of the rank they are for, which adds them and sends the sum.
Steps rail_dedup_steps_back(const Topology& topology, int rank = kAllRanks);

// Of a route that moves blocks from rank to rank: rail's for kRailDedup.
Steps steps_of_ranks(Route route, const Topology& topology, int rank = kAllRanks);

// Collects steps; those that do not concern `rank` are left out.
class StepList {
 public:
  explicit StepList(int rank) : rank_(rank) {}
  bool concerns(int from, int to) const { return rank_ == kAllRanks || rank_ == from || rank_ == to; }
  void add(Step step) {
    if (concerns(step.from, step.to)) steps_.push_back(std::move(step));
  }
  // A block from each rank to each other of its node.
  void add_own_nodes(const Topology& topology);
  Steps take() { return std::move(steps_); }

 private:
  int rank_;
  Steps steps_;
};

}  // namespace moesaic
