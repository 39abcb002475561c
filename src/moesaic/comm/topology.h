// topology.h: which rank sits on which node. A node is a set of ranks behind one network card.
//
// Local; pure data. Summation order follows it (contract 1): ranks of a node ascending, then nodes ascending.
#pragma once

#include <span>
#include <vector>

namespace moesaic {

class Topology {
 public:
  // Ranks 0..world_size-1 on one node.
  static Topology one_node(int world_size);
  // Rank r is on node r / ranks_per_node; the last node may hold fewer.
  static Topology uniform(int world_size, int ranks_per_node);
  // node_of_rank[r] is the node of rank r. Nodes are 0..num_nodes-1, none empty; else InvalidArgument.
  static Topology from_nodes(std::vector<int> node_of_rank);

  int world_size() const { return static_cast<int>(node_of_rank_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_of_node_.size()); }
  int node_of(int rank) const { return node_of_rank_.at(static_cast<std::size_t>(rank)); }
  // Ascending.
  std::span<const int> ranks_of(int node) const { return ranks_of_node_.at(static_cast<std::size_t>(node)); }
  // The rank of `node` that stands for `rank` there: it brings the parts of `rank` into the node and takes
  // the node's parts for `rank` out of it, so that they cross between nodes once. Nodes of different sizes
  // share the work round by round: the i-th rank of a node has its counterpart at place i mod size.
  int counterpart(int rank, int node) const;
  // The ranks of other nodes whose counterpart on its node is `rank`, ascending.
  std::vector<int> stands_for(int rank) const;
  // The other ranks of its node, from the one after `rank` on and round.
  std::vector<int> peers_after(int rank) const;
  // The topology of a subset: rank i of the result is ranks[i]; nodes keep their order, empty ones vanish.
  Topology subset(std::span<const int> ranks) const;

 private:
  std::vector<int> node_of_rank_;
  std::vector<std::vector<int>> ranks_of_node_;
};

}  // namespace moesaic
