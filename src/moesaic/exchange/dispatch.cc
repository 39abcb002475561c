#include "moesaic/exchange/dispatch.h"

#include <optional>
#include <utility>

#include "moesaic/core/error.h"
#include "moesaic/exchange/chunks.h"
#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/moving_rows.h"
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

}  // namespace

DispatchHandle plan_dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement,
                             std::int64_t bytes_per_row, const DispatchOptions& options) {
  require(!options.chunks || (*options.chunks >= 1 && *options.chunks <= kMostChunks),
          "dispatch: {} chunks, expected 1 to {}", options.chunks.value_or(0), kMostChunks);
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
    lay_out_chunks(group.rank(), {}, handle);
  } else {
    NodeSide nodes = node_side(side, group.topology(), group.rank());
    const Agreement asked{.table_digest = table_digest(placement),
                          .row_bytes = bytes_per_row,
                          .sum_bytes = options.bytes_per_sum.value_or(bytes_per_row),
                          .route = options.route ? static_cast<std::int64_t>(*options.route) : kAuto,
                          .chunks = options.chunks.value_or(kAuto)};
    handle.counts = gather_counts(group, placement, side, nodes, asked, options.uncut_slots);
    if (options.route) {
      handle.route = *options.route;
    } else {
      std::optional<RoutePrices> bytes_only;
      if (options.prices == nullptr) bytes_only.emplace(group.topology());
      handle.route = (bytes_only ? *bytes_only : *options.prices)
                         .cheapest(handle.counts, asked.row_bytes, asked.sum_bytes);
    }
    for (int r = 0; r < group.size(); ++r) {
      const auto at = static_cast<std::size_t>(r * group.size() + group.rank());
      handle.receive_rows.push_back(handle.counts.rows[at]);
      handle.receive_slots.push_back(handle.counts.slots[at]);
    }
    const std::int64_t num_chunks =
        choose_chunks(group.topology(), placement, handle.counts, bytes_per_row, options.chunks);
    lay_out_chunks(group.rank(),
                   gather_chunk_counts(group, side, nodes, plan.num_tokens, num_chunks, handle.counts),
                   handle);
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
  start_rows(group, handle, x, rows, /*background=*/false);
  return handle;
}

void dispatch_again(Communicator& group, const DispatchHandle& handle, ConstRows g, Buffer& rows) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "dispatch_again"});
  start_rows(group, handle, g, rows, /*background=*/false);
}

}  // namespace moesaic
