// flat_route.h: one message to every other rank; the own part is left to the caller.
//
// Collective on the group. Unlike all_to_all_v, nothing is copied for the own part, and its size may differ
// in the two layouts (0 where it is kept elsewhere): rows of one's own go straight to where they are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moesaic/comm/communicator.h"
#include "moesaic/comm/schedule.h"

namespace moesaic {

// kInput: parts for rank 0, 1, ...; kOutput: parts from rank 0, 1, .... Pure. X-1 messages, sent in the order
// rank+1, rank+2, ... so that no rank is everyone's first target.
Schedule flat_schedule(int group_size, int rank, std::span<const std::int64_t> send_bytes,
                       std::span<const std::int64_t> receive_bytes);

// Runs it. `name` is for error messages.
void send_flat(Communicator& group, std::string_view name, std::span<const std::byte> send,
               std::span<const std::int64_t> send_bytes, std::span<std::byte> receive,
               std::span<const std::int64_t> receive_bytes);

}  // namespace moesaic
