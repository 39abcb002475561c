// Along rails, each row once to a node and one sum back. Phases out: to the counterpart on each other node;
// it spreads the rows and hands them on. Back: a node's blocks to the counterpart of the rank they are for;
// it adds them and sends the sum.
#include "moesaic/exchange/route_steps.h"

namespace moesaic {

Steps rail_dedup_steps(const Topology& topology, int rank) {
  const int num_nodes = topology.num_nodes();
  StepList steps(rank);
  for (int distance = 1; distance < num_nodes; ++distance) {
    for (int from = 0; from < topology.world_size(); ++from) {
      const int node = (topology.node_of(from) + distance) % num_nodes;
      const Block rows{Block::Kind::kToNode, from, node};
      steps.add({.from = from, .to = topology.counterpart(from, node), .blocks = {rows}});
    }
  }
  steps.add_own_nodes(topology);
  for (int carrier = 0; carrier < topology.world_size(); ++carrier) {
    for (const int from : topology.stands_for(carrier)) {
      const Block rows{Block::Kind::kToNode, from, topology.node_of(carrier)};
      steps.add({.kind = Step::Kind::kSpread, .phase = 1, .from = carrier, .to = carrier, .blocks = {rows}});
      for (const int to : topology.peers_after(carrier)) {
        steps.add({.phase = 1, .from = carrier, .to = to, .blocks = {{.from = from, .to = to}}});
      }
    }
  }
  return steps.take();
}

Steps rail_dedup_steps_back(const Topology& topology, int rank) {
  const int num_nodes = topology.num_nodes();
  StepList steps(rank);
  for (int carrier = 0; carrier < topology.world_size(); ++carrier) {  // what has further to go first
    for (const int to : topology.stands_for(carrier)) {
      for (const int from : topology.peers_after(carrier)) {
        steps.add({.from = from, .to = carrier, .blocks = {{.from = from, .to = to}}});
      }
    }
  }
  steps.add_own_nodes(topology);
  for (int distance = 1; distance < num_nodes; ++distance) {
    for (int to = 0; to < topology.world_size(); ++to) {
      const int node = (topology.node_of(to) + distance) % num_nodes;
      const int carrier = topology.counterpart(to, node);
      const Block sums{Block::Kind::kFromNode, node, to};
      steps.add({.kind = Step::Kind::kSum, .phase = 1, .from = carrier, .to = carrier, .blocks = {sums}});
      steps.add({.phase = 1, .from = carrier, .to = to, .blocks = {sums}});
    }
  }
  return steps.take();
}

}  // namespace moesaic
