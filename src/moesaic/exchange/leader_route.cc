// Through a leader of each node. Phases: to the leader (and, inside a node, straight to its ranks); between
// leaders; from the leader.
#include "moesaic/exchange/route_steps.h"

namespace moesaic {
namespace {

void to_leader(const Topology& topology, StepList& steps) {
  for (int node = 0; node < topology.num_nodes(); ++node) {
    const int leader = topology.ranks_of(node).front();
    for (const int from : topology.ranks_of(node)) {
      if (from == leader || !steps.concerns(from, leader)) continue;
      Step step{.from = from, .to = leader, .blocks = {}};
      for (int other = 0; other < topology.num_nodes(); ++other) {
        if (other == node) continue;
        for (const int to : topology.ranks_of(other)) step.blocks.push_back({.from = from, .to = to});
      }
      if (!step.blocks.empty()) steps.add(std::move(step));
    }
  }
}

// A message: by destination, then source, so that what one rank gets of it lies together.
void between_leaders(const Topology& topology, StepList& steps) {
  const int num_nodes = topology.num_nodes();
  for (int distance = 1; distance < num_nodes; ++distance) {
    for (int node = 0; node < num_nodes; ++node) {
      const auto here = topology.ranks_of(node), there = topology.ranks_of((node + distance) % num_nodes);
      if (!steps.concerns(here.front(), there.front())) continue;
      Step step{.phase = 1, .from = here.front(), .to = there.front(), .blocks = {}};
      for (const int to : there) {
        for (const int from : here) step.blocks.push_back({.from = from, .to = to});
      }
      steps.add(std::move(step));
    }
  }
}

void from_leader(const Topology& topology, StepList& steps) {
  const int num_nodes = topology.num_nodes();
  for (int distance = 1; distance < num_nodes; ++distance) {
    for (int node = 0; node < num_nodes; ++node) {
      const auto here = topology.ranks_of(node);
      const auto sources = topology.ranks_of((node + num_nodes - distance) % num_nodes);
      for (const int to : here.subspan(1)) {
        if (!steps.concerns(here.front(), to)) continue;
        Step step{.phase = 2, .from = here.front(), .to = to, .blocks = {}};
        for (const int from : sources) step.blocks.push_back({.from = from, .to = to});
        steps.add(std::move(step));
      }
    }
  }
}

}  // namespace

Steps leader_steps(const Topology& topology, int rank) {
  StepList steps(rank);
  to_leader(topology, steps);
  steps.add_own_nodes(topology);
  between_leaders(topology, steps);
  from_leader(topology, steps);
  return steps.take();
}

}  // namespace moesaic
