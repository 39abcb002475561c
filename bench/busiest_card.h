// busiest_card.h: the bytes of the host whose network card moved most.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/nic_bytes.h"
#include "moesaic/comm/collectives.h"

namespace moesaic::bench {

// Sent or received, whichever is more, of the host where it was most: on all ranks. Collective.
inline std::int64_t bytes_of_busiest_card(Communicator& world, NicBytes moved) {
  const auto size = static_cast<std::size_t>(world.size());
  const std::int64_t mine = std::max(moved.sent, moved.received);
  std::vector<std::int64_t> all(size);
  all_gather_v(world, std::as_bytes(std::span(&mine, 1)),
               std::vector<std::int64_t>(size, static_cast<std::int64_t>(sizeof mine)),
               std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

}  // namespace moesaic::bench
