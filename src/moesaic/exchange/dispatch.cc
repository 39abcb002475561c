#include "moesaic/exchange/dispatch.h"

#include <utility>

#include "moesaic/core/error.h"
#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/move_blocks.h"
#include "moesaic/exchange/node_rows.h"
#include "moesaic/exchange/route_price.h"
#include "moesaic/exchange/rows.h"
#include "moesaic/exchange/sender_side.h"

namespace moesaic {
namespace {

// The owner's side of a group of one: what is sent is what is received.
void receive_own(const SenderSide& side, DispatchHandle& handle) {
  handle.receive_rows = side.rows;
  handle.receive_slots = side.slots;
  for (const std::int32_t count : side.slots_of_row) {
    handle.slot_begin.push_back(handle.slot_begin.back() + count);
  }
  handle.slot_expert = side.local_expert;
  handle.slot_weight = side.weight;
}

// Own rows straight to where they are needed, those for others by the handle's route.
void exchange_rows(Communicator& group, const DispatchHandle& handle, const ConstRows& x, Buffer& rows) {
  const std::int64_t bytes_per_row = row_bytes(x.dtype, x.width);
  const int self = group.rank();
  const Topology& topology = group.topology();
  const auto* source = static_cast<const std::byte*>(x.data);
  if (const std::int64_t bytes = handle.num_rows() * bytes_per_row; rows.bytes() != bytes) {
    rows = Buffer();  // freed first: old and new need not be held together
    rows = Buffer(bytes);
  }
  const auto tokens_for = [&](int r) {
    return std::span(handle.sent_token)
        .subspan(static_cast<std::size_t>(first_of_part(handle.send_rows, r)),
                 static_cast<std::size_t>(handle.send_rows[static_cast<std::size_t>(r)]));
  };
  const Places received = places_by_rank(scaled(handle.receive_rows, bytes_per_row));
  const auto pack_own = [&] {
    gather_rows(source, tokens_for(self), bytes_per_row,
                rows.data() + received.begin.of_ranks[static_cast<std::size_t>(self)]);
  };
  if (group.size() == 1) return pack_own();

  const bool once_to_a_node = handle.route == Route::kRailDedup;
  const Places packed = places_at_source(handle.route, topology, self, handle.counts, bytes_per_row);
  Buffer sent(packed.bytes);
  for (int r = 0; r < group.size(); ++r) {
    if (r == self || (once_to_a_node && topology.node_of(r) != topology.node_of(self))) continue;
    gather_rows(source, tokens_for(r), bytes_per_row,
                sent.data() + packed.begin.of_ranks[static_cast<std::size_t>(r)]);
  }
  if (once_to_a_node) {  // node by node, as they are packed, at the end
    gather_rows(source, handle.sent_node_token, bytes_per_row,
                sent.data() + packed.bytes - std::ssize(handle.sent_node_token) * bytes_per_row);
  }
  pack_own();
  move_blocks(
      group, "dispatch",
      once_to_a_node ? rail_dedup_steps(topology, self) : steps_of_ranks(handle.route, topology, self),
      bytes_of_rows(handle.counts, bytes_per_row, group.size(), /*back=*/false), packed.begin, sent.span(),
      received.begin, rows.span(), [&](const NodeWork& work, const BlockMemory& memory) {
        spread_rows(work, memory, handle, bytes_per_row);
      });
}

}  // namespace

DispatchHandle plan_dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement,
                             std::int64_t bytes_per_row, const DispatchOptions& options) {
  require(placement.exchange_size() == group.size(),
          "dispatch: a placement for groups of {} ranks in a group of {}", placement.exchange_size(),
          group.size());
  SenderSide side = sender_side(plan, placement);
  DispatchHandle handle;
  handle.num_tokens = plan.num_tokens;
  handle.num_choices = plan.num_choices;
  handle.slot_begin.push_back(0);
  if (group.size() == 1) {
    receive_own(side, handle);
  } else {
    NodeSide nodes = node_side(side, group.topology(), group.rank());
    const std::int64_t asked = options.route ? static_cast<std::int64_t>(*options.route) : kAutoRoute;
    handle.counts =
        gather_counts(group, placement, side, nodes, {table_digest(placement), bytes_per_row, asked});
    handle.route = options.route
                       ? *options.route
                       : choose_route(group.topology(), handle.counts, bytes_per_row, options.calibration);
    for (int r = 0; r < group.size(); ++r) {
      const auto at = static_cast<std::size_t>(r * group.size() + group.rank());
      handle.receive_rows.push_back(handle.counts.rows[at]);
      handle.receive_slots.push_back(handle.counts.slots[at]);
    }
    exchange_lists(group, side, nodes, placement, handle);
    handle.sent_node_token = std::move(nodes.token);
  }
  handle.send_rows = std::move(side.rows);
  handle.send_slots = std::move(side.slots);
  handle.sent_token = std::move(side.token);
  handle.sent_slot = std::move(side.position);
  return handle;
}

DispatchHandle dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement, ConstRows x,
                        Buffer& rows, const DispatchOptions& options) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "dispatch"});
  check_rows("dispatch: x", x.data, x.dtype, x.num_rows, x.width);
  require(plan.num_tokens == x.num_rows, "dispatch: a plan of {} tokens, but x has {}", plan.num_tokens,
          x.num_rows);
  DispatchHandle handle = plan_dispatch(group, plan, placement, row_bytes(x.dtype, x.width), options);
  exchange_rows(group, handle, x, rows);
  return handle;
}

void dispatch_again(Communicator& group, const DispatchHandle& handle, ConstRows g, Buffer& rows) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "dispatch_again"});
  check_handle("dispatch_again", group, handle);
  check_rows("dispatch_again: g", g.data, g.dtype, g.num_rows, g.width);
  require(g.num_rows == handle.num_tokens, "dispatch_again: g has {} tokens, the dispatch had {}", g.num_rows,
          handle.num_tokens);
  exchange_rows(group, handle, g, rows);
}

}  // namespace moesaic
