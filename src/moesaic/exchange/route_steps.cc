#include "moesaic/exchange/route_steps.h"

#include <algorithm>

namespace moesaic {

void StepList::add_own_nodes(const Topology& topology) {
  for (int from = 0; from < topology.world_size(); ++from) {
    for (const int to : topology.peers_after(from)) {
      if (concerns(from, to)) add({.from = from, .to = to, .blocks = {{.from = from, .to = to}}});
    }
  }
}

Steps steps_of_ranks(Route route, const Topology& topology, int rank) {
  switch (route) {
    case Route::kFlat:
      return flat_steps(topology, rank);
    case Route::kLeader:
      return leader_steps(topology, rank);
    case Route::kRail:
    case Route::kRailDedup:
      break;
  }
  return rail_steps(topology, rank);
}

}  // namespace moesaic
