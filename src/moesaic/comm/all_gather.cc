#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

// The own part has slot 0; carried parts take turns with the others. A pair of ranks whose slots are used up
// moves the next part of a slot when the one before is through, at both ends, so that they meet in order.
constexpr std::int32_t kCarrySlots = 63;
std::int32_t carry_slot(std::size_t i) {
  return 1 + static_cast<std::int32_t>(i % static_cast<std::size_t>(kCarrySlots));
}
std::vector<std::int32_t> before_in_slot(const std::vector<std::int32_t>& ops) {
  if (ops.size() < kCarrySlots) return {};
  return {ops[ops.size() - kCarrySlots]};
}

}  // namespace

Schedule all_gather_v_schedule(const Topology& topology, int rank,
                               std::span<const std::int64_t> bytes_per_rank,
                               std::span<const std::int64_t> offsets) {
  const int world_size = topology.world_size();
  require_rank("all_gather_v: rank", rank, world_size);
  const auto begin = placed_offsets("all_gather_v", offsets, bytes_per_rank, world_size);
  const auto part = [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    return Range{BufferId::kOutput, begin[at], bytes_per_rank[at]};
  };
  const Range mine{BufferId::kInput, 0, bytes_per_rank[static_cast<std::size_t>(rank)]};
  const int home = topology.node_of(rank);
  const int num_nodes = topology.num_nodes();
  const std::vector<int> peers = topology.peers_after(rank);
  const std::vector<int> carried = topology.stands_for(rank);

  Schedule schedule;
  const auto add = [&](Op op, std::vector<std::int32_t> after = {}) {
    op.after = std::move(after);
    schedule.ops.push_back(std::move(op));
    return static_cast<std::int32_t>(schedule.ops.size()) - 1;
  };
  std::vector<std::int32_t> arrived;  // of each carried part
  for (const int from : carried) arrived.push_back(add(receive_op(from, part(from))));
  for (const int peer : peers) {
    add(receive_op(peer, part(peer)));
    std::vector<std::int32_t> earlier;
    for (const int from : topology.stands_for(peer)) {
      auto after = before_in_slot(earlier);
      earlier.push_back(add(receive_op(peer, part(from), carry_slot(earlier.size())), std::move(after)));
    }
  }
  // The slow links first.
  for (int step = 1; step < num_nodes; ++step) {
    add(send_op(topology.counterpart(rank, (home + step) % num_nodes), mine));
  }
  for (const int peer : peers) add(send_op(peer, mine));
  for (const int peer : peers) {
    std::vector<std::int32_t> earlier;
    for (std::size_t i = 0; i < carried.size(); ++i) {
      auto after = before_in_slot(earlier);
      after.push_back(arrived[i]);
      earlier.push_back(add(send_op(peer, part(carried[i]), carry_slot(i)), std::move(after)));
    }
  }
  add(copy_op(mine, part(rank)));
  return schedule;
}

}  // namespace moesaic
