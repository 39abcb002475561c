#include "moesaic/exchange/moving_rows.h"

#include <cstdint>

#include "moesaic/core/error.h"
#include "moesaic/exchange/chunks.h"
#include "moesaic/exchange/node_rows.h"
#include "moesaic/exchange/rows.h"

namespace moesaic {
namespace {

// The rows of a chunk for others, packed as they travel.
Buffer pack(const Topology& topology, int self, const DispatchHandle& handle, std::size_t chunk,
            const Places& places, const std::byte* x, std::int64_t bytes_per_row) {
  const bool once_to_a_node = handle.route == Route::kRailDedup;
  const int home = topology.node_of(self);
  Buffer sent(places.bytes);
  for (int r = 0; r < topology.world_size(); ++r) {
    if (r == self || (once_to_a_node && topology.node_of(r) != home)) continue;
    gather_rows(x, tokens_for_rank(handle, self, chunk, r), bytes_per_row,
                sent.data() + places.begin.of_ranks[static_cast<std::size_t>(r)]);
  }
  for (int node = 0; node < topology.num_nodes() && once_to_a_node; ++node) {
    if (node == home) continue;
    gather_rows(x, tokens_for_node(handle, topology, self, chunk, node), bytes_per_row,
                sent.data() + places.begin.of_nodes[static_cast<std::size_t>(node)]);
  }
  return sent;
}

}  // namespace

MovingRows start_rows(Communicator& group, const DispatchHandle& handle, ConstRows x, Buffer& rows,
                      bool background) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "start rows"});
  check_handle("dispatch", group, handle);
  check_rows("dispatch: x", x.data, x.dtype, x.num_rows, x.width);
  require(x.num_rows == handle.num_tokens, "dispatch: x has {} tokens, the plan had {}", x.num_rows,
          handle.num_tokens);
  const std::int64_t bytes_per_row = row_bytes(x.dtype, x.width);
  const int self = group.rank();
  const Topology& topology = group.topology();
  const auto* source = static_cast<const std::byte*>(x.data);
  if (const std::int64_t bytes = handle.num_rows() * bytes_per_row; rows.bytes() != bytes) {
    rows = Buffer();  // freed first: old and new need not be held together
    rows = Buffer(bytes);
  }
  MovingRows moving;
  moving.group_ = &group;
  for (std::size_t c = 0; c < handle.chunks.size(); ++c) {
    const DispatchHandle::Chunk& chunk = handle.chunks[c];
    const auto target = rows.span().subspan(static_cast<std::size_t>(chunk.first_row * bytes_per_row),
                                            static_cast<std::size_t>(chunk.num_rows * bytes_per_row));
    const Places received = places_by_rank(scaled(received_rows(handle, self, c), bytes_per_row));
    // Own rows straight to where they are needed, those for others by the handle's route.
    const auto pack_own = [&] {
      gather_rows(source, tokens_for_rank(handle, self, c, self), bytes_per_row,
                  target.data() + received.begin.of_ranks[static_cast<std::size_t>(self)]);
    };
    if (group.size() == 1) {
      pack_own();
      break;
    }
    const Places packed = places_at_source(handle.route, topology, self, chunk.counts, bytes_per_row);
    MovingRows::Chunk& moved = moving.chunks_.emplace_back();
    moved.sent = pack(topology, self, handle, c, packed, source, bytes_per_row);
    const Steps steps = handle.route == Route::kRailDedup ? rail_dedup_steps(topology, self)
                                                          : steps_of_ranks(handle.route, topology, self);
    if (!background) pack_own();
    moved.blocks = MovingBlocks(group, background, "dispatch", steps,
                                bytes_of_rows(chunk.counts, bytes_per_row, group.size(), /*back=*/false),
                                {packed.begin, moved.sent.span(), received.begin, target},
                                [forwarded = std::span(chunk.forwarded), bytes_per_row](
                                    const NodeWork& work, const BlockMemory& memory) {
                                  spread_rows(work, memory, forwarded, bytes_per_row);
                                });
    if (background) pack_own();  // while the others are under way
  }
  return moving;
}

void MovingRows::wait(std::size_t chunk) {
  if (chunk >= chunks_.size()) return;
  const Span span(group_->tracer(), {.phase = Phase::kExchange, .name = "rows", .waiting = true});
  chunks_[chunk].blocks.wait();
}

}  // namespace moesaic
