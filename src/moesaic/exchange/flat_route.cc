// One message to every other rank; the own block is left to the caller.
#include "moesaic/exchange/route_steps.h"

namespace moesaic {

Steps flat_steps(const Topology& topology, int rank) {
  const int size = topology.world_size();
  StepList steps(rank);
  for (int distance = 1; distance < size; ++distance) {
    for (int from = 0; from < size; ++from) {
      const int to = (from + distance) % size;
      if (steps.concerns(from, to)) steps.add({.from = from, .to = to, .blocks = {{.from = from, .to = to}}});
    }
  }
  return steps.take();
}

}  // namespace moesaic
