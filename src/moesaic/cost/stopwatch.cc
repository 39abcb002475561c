#include "moesaic/cost/stopwatch.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/comm/collectives.h"

namespace moesaic {

double slowest(Communicator& world, double value) {
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(world.size()), sizeof value);
  std::vector<double> all(bytes.size());
  all_gather_v(world, std::as_bytes(std::span(&value, 1)), bytes, std::as_writable_bytes(std::span(all)));
  return *std::ranges::max_element(all);
}

}  // namespace moesaic
