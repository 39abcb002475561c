// slot_lists.h: the slot lists that travel ahead of the rows, and their checks on arrival.
//
// Local; host byte order. What a peer sent is checked before it is believed:
// CorruptData names the peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/sender_side.h"

namespace moesaic {

// Bytes of the slot lists of a part: int32 slots of each row, int32 local experts, fp32 weights.
std::int64_t slot_list_bytes(std::int64_t rows, std::int64_t slots);

// Parts for rank 0, 1, ... back to back.
std::vector<std::byte> write_slot_lists(const SenderSide& side);

// Appends the part of `peer` to the owner's side of `handle` (slot_begin must start with a 0).
void read_slot_list(std::span<const std::byte> part, std::int64_t rows, std::int64_t slots,
                    std::int64_t num_local_experts, int peer, DispatchHandle& handle);

}  // namespace moesaic
