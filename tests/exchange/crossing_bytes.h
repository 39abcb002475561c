// crossing_bytes.h: the bytes that each rank must send to other nodes, by route: counted from the plans of
// all ranks, token by token.
#pragma once

#include "moesaic/exchange/route.h"
#include "tests/exchange/oracle.h"

namespace moesaic::exchange_checks {

struct CrossingBytes {
  std::int64_t counts = 0, lists = 0;
  std::int64_t rows = 0;  // out
  std::int64_t sums = 0;  // back
};

// Of the tokens of `source` at one owner, or at all owners of one node.
struct TokensThere {
  std::int64_t rows = 0, slots = 0, distinct = 0;
};
inline TokensThere tokens_at(const Case& c, const Placement& placement, const Topology& topology, int source,
                             int node) {
  const auto plan = plan_of(c, source, topology.world_size());
  TokensThere there;
  for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
    bool any = false;
    for (const int owner : topology.ranks_of(node)) {
      const auto slots = std::ssize(slots_at(plan, placement, t, owner));
      there.rows += slots > 0;
      there.slots += slots;
      any |= slots > 0;
    }
    there.distinct += any;
  }
  return there;
}

inline CrossingBytes crossing_bytes(const Case& c, const Placement& placement, const Topology& topology,
                                    int rank, DType dtype, DType wire, Route route, std::int64_t chunks = 1) {
  const std::int64_t row_bytes = c.width * size_of(dtype), sum_bytes = c.width * size_of(wire);
  const int home = topology.node_of(rank), num_nodes = topology.num_nodes(), size = topology.world_size();
  CrossingBytes due;
  due.counts = (num_nodes - 1) * 8 * (6 + 2 * size + num_nodes);
  if (chunks > 1) due.counts += (num_nodes - 1) * 8 * chunks * (size + num_nodes);
  // Whose bytes this rank takes across.
  std::vector<int> sources{rank};
  if (route == Route::kLeader) {
    const auto here = topology.ranks_of(home);
    sources.assign(here.begin(), here.end());
    if (rank != here.front()) sources.clear();
  }
  for (const int source : sources) {
    for (int node = 0; node < num_nodes; ++node) {
      if (node == home) continue;
      const TokensThere there = tokens_at(c, placement, topology, source, node);
      due.lists += 4 * there.rows + 8 * there.slots;
      due.rows += row_bytes * (route == Route::kRailDedup ? there.distinct : there.rows);
      if (route == Route::kRailDedup)
        due.lists += there.distinct * ((std::ssize(topology.ranks_of(node)) + 7) / 8);
    }
  }
  for (int source = 0; source < size; ++source) {
    if (topology.node_of(source) == home) continue;
    if (route == Route::kRailDedup) {
      if (topology.counterpart(source, home) != rank) continue;
      due.sums += sum_bytes * tokens_at(c, placement, topology, source, home).distinct;
    } else {
      for (const int owner : sources) {
        const auto plan = plan_of(c, source, size);
        for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
          due.sums += sum_bytes * !slots_at(plan, placement, t, owner).empty();
        }
      }
    }
  }
  return due;
}

}  // namespace moesaic::exchange_checks
