// exchange_lists.h: moves the slot lists, and fills the owner's side of a handle from them.
//
// Collective, by handle.route; handle.counts and handle.chunks are known. By kRailDedup also the masks that
// say whom a row of another node is for: to the rank that will spread it. CorruptData names a peer whose
// lists do not add up.
#pragma once

#include "moesaic/exchange/block_schedule.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/sender_side.h"

namespace moesaic {

BlockBytes bytes_of_lists(const ExchangeCounts& counts, const Topology& topology);

void exchange_lists(Communicator& group, const SenderSide& side, const NodeSide& nodes,
                    const Placement& placement, DispatchHandle& handle);

// From masks (NodeSide::mask) of `source`'s rows for a node: which of them each rank shall have. `expected`:
// by place in the node, how many that must be. `peer`: its name in messages.
DispatchHandle::Forwarded read_masks(std::span<const std::byte> masks, int source,
                                     std::span<const std::int64_t> expected, int peer);

}  // namespace moesaic
