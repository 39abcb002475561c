#include "moesaic/exchange/exchange_lists.h"

#include <algorithm>
#include <cstring>

#include "moesaic/exchange/chunks.h"
#include "moesaic/exchange/move_blocks.h"
#include "moesaic/exchange/require_of_peer.h"
#include "moesaic/exchange/slot_lists.h"

namespace moesaic {

BlockBytes bytes_of_lists(const ExchangeCounts& counts, const Topology& topology) {
  BlockBytes bytes;
  for (std::size_t i = 0; i < counts.rows.size(); ++i) {
    bytes.of_ranks.push_back(slot_list_bytes(counts.rows[i], counts.slots[i]));
  }
  for (std::size_t i = 0; i < counts.node_rows.size(); ++i) {
    const int node = static_cast<int>(i) % topology.num_nodes();
    bytes.of_nodes.push_back(counts.node_rows[i] * mask_bytes(std::ssize(topology.ranks_of(node))));
  }
  return bytes;
}

namespace {

std::span<const std::int64_t> row_of(std::span<const std::int64_t> matrix, int rank, int group_size) {
  return matrix.subspan(static_cast<std::size_t>(rank * group_size), static_cast<std::size_t>(group_size));
}

}  // namespace

DispatchHandle::Forwarded read_masks(std::span<const std::byte> masks, int source,
                                     std::span<const std::int64_t> expected, int peer) {
  const std::size_t bytes = static_cast<std::size_t>(mask_bytes(std::ssize(expected)));
  DispatchHandle::Forwarded result{.source = source, .rows_of_rank = {}};
  result.rows_of_rank.resize(expected.size());
  for (std::size_t row = 0; row * bytes < masks.size(); ++row) {
    for (std::size_t i = 0; i < bytes * 8; ++i) {
      if ((masks[row * bytes + i / 8] & std::byte{1} << (i % 8)) == std::byte{0}) continue;
      require_of_peer(i < expected.size(), peer, "sent a row for rank {} of a node of {}", i,
                      expected.size());
      result.rows_of_rank[i].push_back(static_cast<std::int64_t>(row));
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    require_of_peer(std::ssize(result.rows_of_rank[i]) == expected[i], peer,
                    "sent {} rows for rank {} of a node, but announced {}", result.rows_of_rank[i].size(), i,
                    expected[i]);
  }
  return result;
}

void exchange_lists(Communicator& group, const SenderSide& side, const NodeSide& nodes,
                    const Placement& placement, DispatchHandle& handle) {
  const Topology& topology = group.topology();
  const int size = group.size(), self = group.rank(), home = topology.node_of(self);
  const bool with_masks = handle.route == Route::kRailDedup;
  const BlockBytes bytes = bytes_of_lists(handle.counts, topology);
  const auto to_all = transposed(bytes.of_ranks, size);
  const auto out = row_of(bytes.of_ranks, self, size), in = row_of(to_all, self, size);
  Places from = places_by_rank(out), to = places_by_rank(in);

  std::vector<std::byte> sent = write_slot_lists(side);
  if (with_masks) {
    for (int node = 0; node < topology.num_nodes(); ++node) {
      from.begin.of_nodes.push_back(from.bytes);
      from.bytes += bytes.of({Block::Kind::kToNode, self, node}, topology);
    }
    sent.insert(sent.end(), nodes.mask.begin(), nodes.mask.end());
    to.begin.of_nodes.assign(static_cast<std::size_t>(size), to.bytes);
    for (const int source : topology.stands_for(self)) {
      to.begin.of_nodes[static_cast<std::size_t>(source)] = to.bytes;
      to.bytes += bytes.of({Block::Kind::kToNode, source, home}, topology);
    }
  }
  std::vector<std::byte> received(static_cast<std::size_t>(to.bytes));
  const auto own = static_cast<std::size_t>(self);
  std::copy_n(sent.begin() + from.begin.of_ranks[own], out[own], received.begin() + to.begin.of_ranks[own]);
  move_blocks(group, "dispatch",
              with_masks ? rail_steps(topology, self, /*with_node_blocks=*/true)
                         : steps_of_ranks(handle.route, topology, self),
              bytes, {from.begin, sent, to.begin, received});

  const auto num_local_experts = std::ssize(placement.experts_of(self));
  for (int r = 0; r < size; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const auto part = std::span(received).subspan(static_cast<std::size_t>(to.begin.of_ranks[at]),
                                                  static_cast<std::size_t>(in[at]));
    read_slot_list(part, handle.receive_rows[at], handle.receive_slots[at], num_local_experts,
                   group.world_rank(r), handle);
  }
  if (!with_masks) return;
  for (const int source : topology.stands_for(self)) {
    std::vector<std::int64_t> expected;
    for (const int r : topology.ranks_of(home)) {
      expected.push_back(handle.counts.rows[static_cast<std::size_t>(source * size + r)]);
    }
    const auto begin = static_cast<std::size_t>(to.begin.of_nodes[static_cast<std::size_t>(source)]);
    const auto masks = std::span(received).subspan(
        begin, static_cast<std::size_t>(bytes.of({Block::Kind::kToNode, source, home}, topology)));
    const int peer = group.world_rank(source);
    const DispatchHandle::Forwarded whole = read_masks(masks, source, expected, peer);
    for (std::size_t c = 0; c < handle.chunks.size(); ++c) {
      handle.chunks[c].forwarded.push_back(forwarded_in_chunk(whole, topology, self, handle.chunks, c, peer));
    }
  }
}

}  // namespace moesaic
