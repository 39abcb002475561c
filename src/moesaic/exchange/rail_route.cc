// Between nodes along rails: from a rank to its counterpart on each other node; then inside that node.
#include "moesaic/exchange/route_steps.h"

namespace moesaic {

Steps rail_steps(const Topology& topology, int rank, bool with_node_blocks) {
  const int num_nodes = topology.num_nodes();
  StepList steps(rank);
  for (int distance = 1; distance < num_nodes; ++distance) {  // the slow links first
    for (int from = 0; from < topology.world_size(); ++from) {
      const int node = (topology.node_of(from) + distance) % num_nodes;
      const int carrier = topology.counterpart(from, node);
      if (!steps.concerns(from, carrier)) continue;
      Step step{.from = from, .to = carrier, .blocks = {}};
      for (const int to : topology.ranks_of(node)) step.blocks.push_back({.from = from, .to = to});
      if (with_node_blocks) step.blocks.push_back({.kind = Block::Kind::kToNode, .from = from, .to = node});
      steps.add(std::move(step));
    }
  }
  steps.add_own_nodes(topology);
  for (int carrier = 0; carrier < topology.world_size(); ++carrier) {
    for (const int from : topology.stands_for(carrier)) {
      for (const int to : topology.peers_after(carrier)) {
        if (!steps.concerns(carrier, to)) continue;
        steps.add({.phase = 1, .from = carrier, .to = to, .blocks = {{.from = from, .to = to}}});
      }
    }
  }
  return steps.take();
}

}  // namespace moesaic
