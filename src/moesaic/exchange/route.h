// route.h: the paths that exchanged rows may take. All of them bring the same bits home.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace moesaic {

class RoutePrices;  // route_price.h

enum class Route : std::uint8_t {
  kFlat,       // a message from each rank to each other
  kLeader,     // through one rank of each node: a message from each node to each other
  kRail,       // through the counterpart on the other node: a message from each rank to each other node
  kRailDedup,  // as rail, but a row crosses to a node once, and a node's sum crosses back
};
inline constexpr std::array kRoutes{Route::kFlat, Route::kLeader, Route::kRail, Route::kRailDedup};

constexpr std::string_view name_of(Route route) {
  constexpr std::array<std::string_view, std::size(kRoutes)> kNames{"flat", "leader", "rail", "rail_dedup"};
  return kNames[static_cast<std::size_t>(route)];
}

// Equal on all ranks, but for uncut_slots.
struct DispatchOptions {
  // None: for each dispatch the cheapest one by `prices`, or, without them, the one that takes the fewest
  // bytes through the busiest node's card.
  std::optional<Route> route = Route::kFlat;
  const RoutePrices* prices = nullptr;  // of the group's topology
  // How many chunks rows travel in, 1 to kMostChunks; none: as many as pay (chunks.h). The same bits.
  std::optional<std::int64_t> chunks = 1;
  // Of the sum that returns for a row; none: as many as of the row.
  std::optional<std::int64_t> bytes_per_sum = {};
  // Of this rank alone: so many slots or more are worked on in one piece. Then all rows travel in one chunk.
  std::int64_t uncut_slots = std::numeric_limits<std::int64_t>::max();
};
inline constexpr std::int64_t kMostChunks = 1024;

}  // namespace moesaic
