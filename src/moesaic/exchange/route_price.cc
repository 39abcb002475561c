#include "moesaic/exchange/route_price.h"

#include <algorithm>

#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/move_blocks.h"

namespace moesaic {
namespace {

// At every hop a rank waits for the slowest of those before it, which a price made of messages and bytes does
// not know. Where nothing but messages was saved, routes with hops were up to a fifth slower than flat,
// though their price was lower.
constexpr double kHopRisk = 0.1;

}  // namespace

PricedSteps::PricedSteps(const Topology& topology, const Steps& steps) {
  // The message that last moved each block; steps.size(): none yet.
  const int size = topology.world_size(), num_nodes = topology.num_nodes();
  std::vector<std::size_t> moved_by(static_cast<std::size_t>(size * size + 2 * size * num_nodes),
                                    steps.size());
  const auto last_move = [&](const Block& block) -> std::size_t& {
    const std::size_t sums = block.kind == Block::Kind::kFromNode
                                 ? static_cast<std::size_t>(size) * static_cast<std::size_t>(num_nodes)
                                 : 0;
    return moved_by[BlockBytes::index(block, topology) + sums];
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    phases_ = std::max(phases_, step.phase + 1);
    if (step.kind != Step::Kind::kMove) {  // every rank's rows are written or read once
      const Block& whole = step.blocks.front();
      const bool spread = step.kind == Step::Kind::kSpread;
      for (const int r : topology.ranks_of(topology.node_of(step.from))) {
        const Block block = spread ? Block{.from = whole.from, .to = r} : Block{.from = r, .to = whole.to};
        copies_.push_back({step.phase, step.from, BlockBytes::index(block, topology)});
      }
      continue;
    }
    std::size_t first = steps.size();
    bool joined = true;  // all came in one message, or began here
    for (const Block& block : step.blocks) {
      blocks_.push_back(BlockBytes::index(block, topology));
      std::size_t& message = last_move(block);
      if (&block == &step.blocks.front()) first = message;
      joined = joined && message == first;
      message = i;
    }
    moves_.push_back({step.phase, step.from, step.to, !joined, blocks_.size()});
  }
}

int PricedSteps::add_loads(PhaseLoads& loads, const BlockBytes& bytes, int first_phase) const {
  std::size_t block = 0;
  for (const Move& move : moves_) {
    std::int64_t sum = 0;
    for (; block < move.end; ++block) sum += bytes.at(blocks_[block]);
    loads.add_message(first_phase + move.phase, move.from, move.to, sum);
    if (move.copied) loads.add_copy(first_phase + move.phase, move.from, sum);
  }
  for (const Copy& copy : copies_) loads.add_copy(first_phase + copy.phase, copy.rank, bytes.at(copy.block));
  return first_phase + phases_;
}

RoutePrices::RoutePrices(const Topology& topology, const std::optional<Calibration>& calibration)
    : topology_(topology), calibration_(calibration) {
  for (const Route route : kRoutes) {
    if (route == Route::kRailDedup) {
      of_route_.push_back({{topology, rail_steps(topology, kAllRanks, /*with_node_blocks=*/true)},
                           {topology, rail_dedup_steps(topology)},
                           {topology, rail_dedup_steps_back(topology)}});
    } else {
      const PricedSteps steps(topology, steps_of_ranks(route, topology));
      of_route_.push_back({steps, steps, steps});
    }
  }
}

PhaseLoads RoutePrices::loads(Route route, const ExchangeCounts& counts, std::int64_t bytes_per_row,
                              std::int64_t bytes_per_sum) const {
  const Passes& passes = of_route_.at(static_cast<std::size_t>(route));
  const int size = topology_.world_size();
  PhaseLoads loads(topology_);
  int phase = passes.lists.add_loads(loads, bytes_of_lists(counts, topology_), 0);
  phase = passes.rows.add_loads(loads, bytes_of_rows(counts, bytes_per_row, size, /*back=*/false), phase);
  passes.sums.add_loads(loads, bytes_of_rows(counts, bytes_per_sum, size, /*back=*/true), phase);
  return loads;
}

Route RoutePrices::cheapest(const ExchangeCounts& counts, std::int64_t bytes_per_row,
                            std::int64_t bytes_per_sum) const {
  if (topology_.num_nodes() == 1) return Route::kFlat;
  Route best = Route::kFlat;
  double least = 0;
  for (const Route route : kRoutes) {
    const PhaseLoads load = loads(route, counts, bytes_per_row, bytes_per_sum);
    const double price = !calibration_           ? static_cast<double>(load.card_bytes())
                         : route == Route::kFlat ? load.seconds(*calibration_)
                                                 : load.seconds(*calibration_) * (1 + kHopRisk);
    if (route == kRoutes.front() || price < least) {
      best = route;
      least = price;
    }
  }
  return best;
}

}  // namespace moesaic
