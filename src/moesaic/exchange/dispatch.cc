#include "moesaic/exchange/dispatch.h"

#include <numeric>
#include <utility>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/exchange/flat_route.h"
#include "moesaic/exchange/rows.h"
#include "moesaic/exchange/sender_side.h"
#include "moesaic/exchange/slot_lists.h"

namespace moesaic {
namespace {

std::int64_t sum(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

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

void exchange_slots(Communicator& group, const SenderSide& side, const Placement& placement,
                    std::int64_t bytes_per_row, DispatchHandle& handle) {
  const auto group_size = static_cast<std::size_t>(group.size());
  const auto num_local_experts = static_cast<std::int64_t>(placement.experts_of(group.rank()).size());
  const std::int64_t digest = table_digest(placement);
  std::vector<Announcement> sent(group_size), got(group_size);
  for (std::size_t r = 0; r < group_size; ++r) sent[r] = {side.rows[r], side.slots[r], bytes_per_row, digest};
  const std::vector<std::int64_t> sizes(group_size, sizeof(Announcement));
  all_to_all_v(group, std::as_bytes(std::span(sent)), sizes, std::as_writable_bytes(std::span(got)), sizes);

  std::vector<std::int64_t> send_bytes(group_size), receive_bytes(group_size);
  for (int r = 0; r < group.size(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    check_announcement(got[at], sent[at], group.world_rank(r), num_local_experts);
    handle.receive_rows.push_back(got[at].rows);
    handle.receive_slots.push_back(got[at].slots);
    send_bytes[at] = slot_list_bytes(side.rows[at], side.slots[at]);
    receive_bytes[at] = slot_list_bytes(got[at].rows, got[at].slots);
  }
  std::vector<std::byte> lists(static_cast<std::size_t>(sum(receive_bytes)));
  all_to_all_v(group, write_slot_lists(side), send_bytes, lists, receive_bytes);

  std::size_t begin = 0;
  for (int r = 0; r < group.size(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    const auto part = std::span(lists).subspan(begin, static_cast<std::size_t>(receive_bytes[at]));
    read_slot_list(part, got[at].rows, got[at].slots, num_local_experts, group.world_rank(r), handle);
    begin += part.size();
  }
}

void exchange_rows(Communicator& group, const DispatchHandle& handle, const ConstRows& x, Buffer& rows) {
  const std::int64_t bytes_per_row = row_bytes(x.dtype, x.width);
  const int self = group.rank();
  const auto* source = static_cast<const std::byte*>(x.data);
  if (const std::int64_t bytes = handle.num_rows() * bytes_per_row; rows.bytes() != bytes) {
    rows = Buffer();  // freed first: old and new need not be held together
    rows = Buffer(bytes);
  }

  const std::span<const std::int64_t> token(handle.sent_token);
  const auto own_begin = static_cast<std::size_t>(first_of_part(handle.send_rows, self));
  const auto own =
      token.subspan(own_begin, static_cast<std::size_t>(handle.send_rows[static_cast<std::size_t>(self)]));
  std::byte* own_target = rows.data() + first_of_part(handle.receive_rows, self) * bytes_per_row;
  if (group.size() == 1) return gather_rows(source, own, bytes_per_row, own_target);

  const auto before = token.first(own_begin), after = token.subspan(own_begin + own.size());
  Buffer packed(std::ssize(before) * bytes_per_row + std::ssize(after) * bytes_per_row);
  gather_rows(source, before, bytes_per_row, packed.data());
  gather_rows(source, after, bytes_per_row, packed.data() + std::ssize(before) * bytes_per_row);
  gather_rows(source, own, bytes_per_row, own_target);
  send_flat(group, "dispatch", packed.span(), bytes_of_parts(handle.send_rows, bytes_per_row, self),
            rows.span(), bytes_of_parts(handle.receive_rows, bytes_per_row));
}

}  // namespace

DispatchHandle plan_dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement,
                             std::int64_t bytes_per_row) {
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
    exchange_slots(group, side, placement, bytes_per_row, handle);
  }
  handle.send_rows = std::move(side.rows);
  handle.send_slots = std::move(side.slots);
  handle.sent_token = std::move(side.token);
  handle.sent_slot = std::move(side.position);
  return handle;
}

DispatchHandle dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement, ConstRows x,
                        Buffer& rows) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "dispatch"});
  check_rows("dispatch: x", x.data, x.dtype, x.num_rows, x.width);
  require(plan.num_tokens == x.num_rows, "dispatch: a plan of {} tokens, but x has {}", plan.num_tokens,
          x.num_rows);
  DispatchHandle handle = plan_dispatch(group, plan, placement, row_bytes(x.dtype, x.width));
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
