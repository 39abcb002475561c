#include "moesaic/exchange/route_price.h"

#include <algorithm>
#include <vector>

#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/move_blocks.h"

namespace moesaic {
namespace {

// At every hop a rank waits for the slowest of those before it, which a price made of messages and bytes does
// not know. Where nothing but messages was saved, routes with hops were up to a fifth slower than flat,
// though their price was lower.
constexpr double kHopRisk = 0.1;

}  // namespace

int add_loads(PhaseLoads& loads, const Topology& topology, const Steps& steps, const BlockBytes& bytes,
              int first_phase) {
  // The message that last moved each block; steps.size(): none yet.
  const int size = topology.world_size(), num_nodes = topology.num_nodes();
  std::vector<std::size_t> moved_by(static_cast<std::size_t>(size * size + 2 * size * num_nodes),
                                    steps.size());
  const auto last_move = [&](const Block& block) -> std::size_t& {
    const int index = block.kind == Block::Kind::kRanks ? block.from * size + block.to
                      : block.kind == Block::Kind::kToNode
                          ? size * size + block.from * num_nodes + block.to
                          : size * (size + num_nodes) + block.to * num_nodes + block.from;
    return moved_by[static_cast<std::size_t>(index)];
  };
  int end = first_phase;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const int phase = first_phase + step.phase;
    end = std::max(end, phase + 1);
    if (step.kind != Step::Kind::kMove) {  // every rank's rows are written or read once
      const Block& whole = step.blocks.front();
      const bool spread = step.kind == Step::Kind::kSpread;
      for (const int r : topology.ranks_of(topology.node_of(step.from))) {
        const Block block = spread ? Block{.from = whole.from, .to = r} : Block{.from = r, .to = whole.to};
        loads.add_copy(phase, step.from, bytes.of(block, topology));
      }
      continue;
    }
    std::int64_t sum = 0;
    std::size_t first = steps.size();
    bool joined = true;  // all came in one message, or began here
    for (const Block& block : step.blocks) {
      sum += bytes.of(block, topology);
      std::size_t& message = last_move(block);
      if (&block == &step.blocks.front()) first = message;
      joined = joined && message == first;
      message = i;
    }
    loads.add_message(phase, step.from, step.to, sum);
    if (!joined) loads.add_copy(phase, step.from, sum);
  }
  return end;
}

PhaseLoads loads_of_route(Route route, const Topology& topology, const ExchangeCounts& counts,
                          std::int64_t bytes_per_row) {
  const int size = topology.world_size();
  const bool once_to_a_node = route == Route::kRailDedup;
  const Steps plain = once_to_a_node ? Steps() : steps_of_ranks(route, topology);
  PhaseLoads loads(topology);
  int phase = add_loads(loads, topology, once_to_a_node ? rail_steps(topology, kAllRanks, true) : plain,
                        bytes_of_lists(counts, topology), 0);
  phase = add_loads(loads, topology, once_to_a_node ? rail_dedup_steps(topology) : plain,
                    bytes_of_rows(counts, bytes_per_row, size, /*back=*/false), phase);
  add_loads(loads, topology, once_to_a_node ? rail_dedup_steps_back(topology) : plain,
            bytes_of_rows(counts, bytes_per_row, size, /*back=*/true), phase);
  return loads;
}

Route choose_route(const Topology& topology, const ExchangeCounts& counts, std::int64_t bytes_per_row,
                   const Calibration* calibration) {
  if (topology.num_nodes() == 1) return Route::kFlat;
  Route best = Route::kFlat;
  double least = 0;
  for (const Route route : kRoutes) {
    const PhaseLoads loads = loads_of_route(route, topology, counts, bytes_per_row);
    const double price = calibration == nullptr  ? static_cast<double>(loads.card_bytes())
                         : route == Route::kFlat ? loads.seconds(*calibration)
                                                 : loads.seconds(*calibration) * (1 + kHopRisk);
    if (route == kRoutes.front() || price < least) {
      best = route;
      least = price;
    }
  }
  return best;
}

}  // namespace moesaic
