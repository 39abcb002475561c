#include "moesaic/comm/topology.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "moesaic/core/error.h"

namespace moesaic {

Topology Topology::one_node(int world_size) { return uniform(world_size, std::max(world_size, 1)); }

Topology Topology::uniform(int world_size, int ranks_per_node) {
  require(world_size >= 1, "a topology needs at least one rank, got {}", world_size);
  require(ranks_per_node >= 1, "a node needs at least one rank, got {} ranks per node", ranks_per_node);
  std::vector<int> node_of_rank(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    node_of_rank[static_cast<std::size_t>(rank)] = rank / ranks_per_node;
  }
  return from_nodes(std::move(node_of_rank));
}

Topology Topology::from_nodes(std::vector<int> node_of_rank) {
  require(!node_of_rank.empty(), "a topology needs at least one rank, got none");
  const int num_nodes = *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
  // Before anything is sized by it: W ranks cannot fill more than W nodes.
  require(num_nodes <= static_cast<int>(node_of_rank.size()), "{} ranks cannot fill nodes 0..{}",
          node_of_rank.size(), num_nodes - 1);
  Topology topology;
  topology.ranks_of_node_.resize(static_cast<std::size_t>(std::max(num_nodes, 0)));
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    require(node_of_rank[rank] >= 0, "rank {} is on node {}; nodes are numbered from 0", rank,
            node_of_rank[rank]);
    topology.ranks_of_node_[static_cast<std::size_t>(node_of_rank[rank])].push_back(static_cast<int>(rank));
  }
  for (int node = 0; node < num_nodes; ++node) {
    require(!topology.ranks_of(node).empty(), "node {} of {} holds no rank", node, num_nodes);
  }
  topology.node_of_rank_ = std::move(node_of_rank);
  return topology;
}

int Topology::counterpart(int rank, int node) const {
  const auto here = ranks_of(node_of(rank));
  const auto there = ranks_of(node);
  const auto place = std::find(here.begin(), here.end(), rank) - here.begin();
  return there[static_cast<std::size_t>(place % std::ssize(there))];
}

std::vector<int> Topology::stands_for(int rank) const {
  const int home = node_of(rank);
  std::vector<int> ranks;
  for (int r = 0; r < world_size(); ++r) {
    if (node_of(r) != home && counterpart(r, home) == rank) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> Topology::peers_after(int rank) const {
  const auto here = ranks_of(node_of(rank));
  const auto self = std::find(here.begin(), here.end(), rank);
  std::vector<int> peers(self + 1, here.end());
  peers.insert(peers.end(), here.begin(), self);
  return peers;
}

Topology Topology::subset(std::span<const int> ranks) const {
  std::vector<int> new_node(static_cast<std::size_t>(num_nodes()), -1);
  for (const int rank : ranks) {
    require(rank >= 0 && rank < world_size(), "rank {} is not in 0..{}", rank, world_size() - 1);
    new_node[static_cast<std::size_t>(node_of(rank))] = 0;
  }
  int next = 0;
  for (int& node : new_node) {
    if (node == 0) node = next++;
  }
  std::vector<int> node_of_rank;
  node_of_rank.reserve(ranks.size());
  for (const int rank : ranks) node_of_rank.push_back(new_node[static_cast<std::size_t>(node_of(rank))]);
  return from_nodes(std::move(node_of_rank));
}

}  // namespace moesaic
