// dispatch.h: move each token to the ranks that own its chosen experts, and bring results home.
//
// Collective: every rank of `group` (one exchange group) calls the same functions in the same order. The
// handle made by dispatch() serves the way back and both directions of autograd; routing is never recomputed.
//
//   T tokens on this rank, K choices per token, D width, X ranks of the exchange group
//   R rows received: one per (token, owning rank), by source rank, then token: same plan, same bits
//   S slots received: one per (row, expert), by row, then ascending k
//   C chunks: chunk c holds the rows of tokens T*c/C to T*(c+1)/C of every rank. In memory received rows, and
//     sums that go back, lie chunk by chunk, within one by source rank, then token
//
// dispatch() tells all ranks all counts, then sends 4 bytes per row and 8 per slot, then the rows;
// dispatch_again(), combine() and return_slot_values() move once. In the background and chunk by chunk:
// moving_rows.h. Rows move by a route (route.h); lists and
// values by the same, or rail where that is rail_dedup. A row goes once to an owning rank, however many of
// its experts live there; by rail_dedup it crosses to a node once, however many of its owners live there.
// The bits are the same by every route. A group of one sends nothing. Messages, bytes: docs/algorithms.md.
//
// Errors: InvalidArgument before anything is sent; CorruptData naming the peer whose counts, row size, route,
// ownership table or slots disagree with this rank's; PeerLost from comm. Source: de-duplicated dispatch as
// in Occult (arXiv 2505.13345).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/core/buffer.h"
#include "moesaic/core/dtype.h"
#include "moesaic/exchange/counts.h"
#include "moesaic/exchange/route.h"
#include "moesaic/placement/placement.h"
#include "moesaic/routing/plan.h"

namespace moesaic {

// [num_rows, width] elements of `dtype`, rows back to back.
struct ConstRows {
  const void* data;
  DType dtype;
  std::int64_t num_rows, width;
};
struct Rows {
  void* data;
  DType dtype;
  std::int64_t num_rows, width;
};

// What dispatch learned. Move-only; plain data, so that a test can look.
struct DispatchHandle {
  DispatchHandle() = default;
  DispatchHandle(DispatchHandle&&) = default;
  DispatchHandle& operator=(DispatchHandle&&) = default;

  // The sender's side of the re-index matrix (token x rank), by destination, then token.
  std::int64_t num_tokens = 0, num_choices = 0;
  std::vector<std::int64_t> send_rows;   // [X] rows to each rank
  std::vector<std::int64_t> send_slots;  // [X] slots to each rank
  std::vector<std::int64_t> sent_token;  // [sum send_rows] the token each sent row is
  std::vector<std::int64_t> sent_slot;   // [sum send_slots] t*K + k of each sent slot

  // The owner's side (received row x local expert).
  std::vector<std::int64_t> receive_rows;   // [X] rows from each rank
  std::vector<std::int64_t> receive_slots;  // [X]
  std::vector<std::int64_t> slot_begin;     // [R+1] slots of row i: slot_begin[i]..slot_begin[i+1]
  std::vector<std::int32_t> slot_expert;    // [S] local expert index at the owner
  std::vector<float> slot_weight;           // [S]
  std::int64_t num_rows() const { return static_cast<std::int64_t>(slot_begin.size()) - 1; }
  std::int64_t num_slots() const { return static_cast<std::int64_t>(slot_expert.size()); }

  // The way: also known to those whose rows only pass.
  Route route = Route::kFlat;
  ExchangeCounts counts;                      // empty in a group of one
  std::vector<std::int64_t> sent_node_token;  // by other node, then token: each token that goes there
  // kRailDedup: rows of ranks on other nodes that this rank spreads over its node.
  struct Forwarded {
    int source;
    std::vector<std::vector<std::int64_t>> rows_of_rank;  // by place in the node: which of the source's rows
  };
  // What moves at a time.
  struct Chunk {
    std::int64_t first_token, num_tokens;  // of this rank
    std::int64_t first_row, num_rows;      // received, where they lie in memory
    RowCounts counts;                      // empty in a group of one
    std::vector<Forwarded> forwarded;      // rows counted from the chunk's first of that source
  };
  std::vector<Chunk> chunks;            // at least one
  std::vector<std::int64_t> row_there;  // [R] which row (of slot_begin) lies where; empty with one chunk
};

// Sends x [T,D] along `plan`, by the route of `options`, which the handle remembers; `rows` becomes [R,D] of
// x's dtype, chunk by chunk (its memory is kept where the size already fits). InvalidArgument: duplicate
// expert ids in one token, ids out of range, weights not finite, plan and x of different T, a placement whose
// exchange groups are not of group.size() ranks.
DispatchHandle dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement, ConstRows x,
                        Buffer& rows, const DispatchOptions& options = {});

// The first half of dispatch: all of the handle, no rows. For a group of one, which need not copy its own
// rows, and for rows that move in the background (moving_rows.h).
DispatchHandle plan_dispatch(Communicator& group, const RoutingPlan& plan, const Placement& placement,
                             std::int64_t bytes_per_row, const DispatchOptions& options = {});

// Sends other values (a gradient) the same way: g [T,D] -> rows [R,D].
void dispatch_again(Communicator& group, const DispatchHandle& handle, ConstRows g, Buffer& rows);

// z [R,D], one sum per received row, back to its source: y[t] = sum over t's owners, in the order and with
// the rounding of contract 1 (z is already rounded to its dtype; ranks of a node ascending in fp32, rounded
// to the wire dtype; nodes ascending in fp32, rounded to y's dtype). Tokens without an expert get 0. y [T,D].
// The wire dtype is z's, which may be wider than x's: then DispatchOptions says so.
void combine(Communicator& group, const DispatchHandle& handle, ConstRows z, Rows y);

// One float per received slot back to its unique (t,k): values [S] -> home [T,K]; 0 where the plan had no
// expert.
void return_slot_values(Communicator& group, const DispatchHandle& handle, std::span<const float> values,
                        std::span<float> home);

}  // namespace moesaic
