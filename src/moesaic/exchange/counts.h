// counts.h: what all ranks of an exchange tell each other before anything of uneven size is sent.
//
// X ranks of the exchange group on N nodes. Those on the way of a row need to know its size, too, and a
// choice of route must be made by all alike: so everyone learns all counts. Collective: 8 * (6 + 2X + N)
// bytes of each rank to all others. What a peer says is checked before it is believed: CorruptData names it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/exchange/sender_side.h"
#include "moesaic/placement/placement.h"

namespace moesaic {

struct RowCounts {
  std::vector<std::int64_t> rows;       // [X*X] from * X + to
  std::vector<std::int64_t> node_rows;  // [X*N] from * N + node: tokens with an owner there; own node: 0
};

struct ExchangeCounts : RowCounts {
  std::vector<std::int64_t> slots;        // [X*X] from * X + to
  std::vector<std::int64_t> uncut_slots;  // [X] as in DispatchOptions, of each rank
};

inline constexpr std::int64_t kAuto = -1;

// What must be equal on all ranks.
struct Agreement {
  std::int64_t table_digest;  // CRC32C of the ownership table
  std::int64_t row_bytes;
  std::int64_t sum_bytes;  // of what returns for a row
  std::int64_t route;      // as asked for: a Route, or kAuto
  std::int64_t chunks;     // as asked for, or kAuto
  bool operator==(const Agreement&) const = default;
};

std::int64_t table_digest(const Placement& placement);

// `told`: what `from` (a rank of the group) says, as counts of its own: rows, slots [X], node_rows [N].
// `peer`: its name in messages.
void check_told(const Agreement& got, const Agreement& mine, std::span<const std::int64_t> told,
                const Topology& topology, const Placement& placement, int from, int peer);

// That part of it: one token may be for several ranks of a node, and is for one at least.
void check_node_rows(std::span<const std::int64_t> rows, std::span<const std::int64_t> node_rows,
                     const Topology& topology, int from, int peer);

ExchangeCounts gather_counts(Communicator& group, const Placement& placement, const SenderSide& side,
                             const NodeSide& nodes, const Agreement& mine, std::int64_t uncut_slots);

}  // namespace moesaic
