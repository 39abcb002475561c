#include "moesaic/cost/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <thread>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/cost/measure_codec.h"
#include "moesaic/cost/measure_links.h"

namespace moesaic {

Calibration from_rank_0(Communicator& world, const Calibration& mine) {
  std::string text = world.rank() == 0 ? to_json(mine) : "";
  auto size = static_cast<std::int64_t>(text.size());
  broadcast(world, std::as_writable_bytes(std::span(&size, 1)), 0);
  text.resize(static_cast<std::size_t>(size));
  broadcast(world, std::as_writable_bytes(std::span(text)), 0);
  return calibration_from_json(text, "the calibration of rank 0");
}

Calibration calibrate(Communicator& world, const CalibrateOptions& options) {
  require(std::isfinite(options.budget_s) && options.budget_s > 0,
          "calibrate: the budget is {} s, expected a time above 0", options.budget_s);
  Calibration result;
  result.machine = options.machine;
  result.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int rank = 0; rank < world.size(); ++rank) {
    result.node_of_rank.push_back(world.topology().node_of(rank));
  }
  const MeasuredLinks links = measure_links(world, options.budget_s / 2);
  result.inside = links.inside;
  result.between = links.between;
  result.between_measured = links.between_measured;
  measure_codec(world, options.budget_s / 2, result);
  return from_rank_0(world, result);  // whose machine and cores are taken
}

}  // namespace moesaic
