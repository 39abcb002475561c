// route_price.h: what an exchange costs by each route, and which is cheapest. Local; from facts that all
// ranks have, so all choose alike.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "moesaic/cost/calibration.h"
#include "moesaic/cost/phase_loads.h"
#include "moesaic/exchange/block_schedule.h"
#include "moesaic/exchange/counts.h"
#include "moesaic/exchange/route.h"

namespace moesaic {

// The steps of all ranks, ready to be weighed again and again: for each message whose blocks it has and
// whether they have to be copied together first, found out once.
class PricedSteps {
 public:
  PricedSteps(const Topology& topology, const Steps& steps);

  // Adds the messages and what is copied on the way, in phases from `first_phase` on. Returns the phase after
  // the last.
  int add_loads(PhaseLoads& loads, const BlockBytes& bytes, int first_phase) const;

 private:
  struct Move {
    int phase, from, to;
    bool copied;
    std::size_t end;  // of its blocks
  };
  struct Copy {
    int phase, rank;
    std::size_t block;
  };
  std::vector<Move> moves_;
  std::vector<Copy> copies_;
  std::vector<std::size_t> blocks_;  // of the moves, one after another: see BlockBytes::index
  int phases_ = 0;
};

// For exchanges of one group.
class RoutePrices {
 public:
  // Without a calibration the best route is the one with the fewest bytes through the busiest card.
  explicit RoutePrices(const Topology& topology, const std::optional<Calibration>& calibration = {});

  // Of a dispatch and its combine: lists, rows, sums. (Counts are the same by every route, and gradients go
  // the same way again.)
  PhaseLoads loads(Route route, const ExchangeCounts& counts, std::int64_t bytes_per_row,
                   std::int64_t bytes_per_sum) const;

  // The fastest by the calibration, where a route other than flat has to promise a tenth less. The first in
  // the order of kRoutes where several are best.
  Route cheapest(const ExchangeCounts& counts, std::int64_t bytes_per_row, std::int64_t bytes_per_sum) const;

 private:
  struct Passes {
    PricedSteps lists, rows, sums;
  };
  Topology topology_;
  std::optional<Calibration> calibration_;
  std::vector<Passes> of_route_;  // in the order of kRoutes
};

}  // namespace moesaic
