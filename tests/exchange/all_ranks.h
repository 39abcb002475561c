// all_ranks.h: what every rank of a case knows after counts and masks were exchanged, without a message.
#pragma once

#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/move_blocks.h"
#include "tests/exchange/cases.h"

namespace moesaic::exchange_checks {

struct AllRanks {
  Placement placement;
  std::vector<SenderSide> senders;
  std::vector<NodeSide> nodes;
  ExchangeCounts counts;
  std::vector<std::vector<DispatchHandle::Forwarded>> forwarded;  // by rank

  AllRanks(const Case& c, const Topology& topology, Route route)
      : placement(placement_of(c, topology.world_size())) {
    const int size = topology.world_size();
    for (int rank = 0; rank < size; ++rank) {
      senders.push_back(sender_side(plan_of(c, rank, size), placement));
      nodes.push_back(node_side(senders.back(), topology, rank));
      const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      append(counts.rows, senders.back().rows);
      append(counts.slots, senders.back().slots);
      append(counts.node_rows, nodes.back().rows);
    }
    for (int rank = 0; rank < size; ++rank) {
      forwarded.emplace_back();
      if (route != Route::kRailDedup) continue;
      const int home = topology.node_of(rank);
      const auto mask = static_cast<std::size_t>(mask_bytes(std::ssize(topology.ranks_of(home))));
      for (const int source : topology.stands_for(rank)) {
        const NodeSide& side = nodes[static_cast<std::size_t>(source)];
        std::size_t begin = 0;
        for (int node = 0; node < home; ++node) {
          begin += static_cast<std::size_t>(side.rows[static_cast<std::size_t>(node)] *
                                            mask_bytes(std::ssize(topology.ranks_of(node))));
        }
        std::vector<std::int64_t> expected;
        for (const int r : topology.ranks_of(home)) {
          expected.push_back(counts.rows[static_cast<std::size_t>(source * size + r)]);
        }
        const auto masks = std::span(side.mask).subspan(
            begin, mask * static_cast<std::size_t>(side.rows[static_cast<std::size_t>(home)]));
        forwarded.back().push_back(read_masks(masks, source, expected, source));
      }
    }
  }

  // By source.
  std::vector<std::int64_t> received_rows(int rank) const {
    const int size = static_cast<int>(senders.size());
    std::vector<std::int64_t> rows;
    for (int source = 0; source < size; ++source) {
      rows.push_back(counts.rows[static_cast<std::size_t>(source * size + rank)]);
    }
    return rows;
  }
};

}  // namespace moesaic::exchange_checks
