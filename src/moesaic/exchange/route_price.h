// route_price.h: what an exchange costs by each route, and which is cheapest. Local; from facts that all
// ranks have, so all choose alike.
#pragma once

#include <cstdint>

#include "moesaic/cost/phase_loads.h"
#include "moesaic/exchange/block_schedule.h"
#include "moesaic/exchange/counts.h"
#include "moesaic/exchange/route.h"

namespace moesaic {

// Adds the messages of `steps` and what is copied on the way, in phases from `first_phase` on. Returns the
// phase after the last.
int add_loads(PhaseLoads& loads, const Topology& topology, const Steps& steps, const BlockBytes& bytes,
              int first_phase);

// Of a dispatch and its combine: lists, rows, sums. (Counts are the same by every route, and gradients go the
// same way again.)
PhaseLoads loads_of_route(Route route, const Topology& topology, const ExchangeCounts& counts,
                          std::int64_t bytes_per_row);

// The fastest by `calibration`, where a route other than flat has to promise a tenth less; null: the one with
// the fewest bytes through the busiest card. The first in the order of kRoutes where several are best.
Route choose_route(const Topology& topology, const ExchangeCounts& counts, std::int64_t bytes_per_row,
                   const Calibration* calibration);

}  // namespace moesaic
