#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {

Schedule barrier_schedule(int world_size, int rank) {
  require_rank("barrier: rank", rank, world_size);
  Schedule schedule;
  const Range nothing{BufferId::kScratch};
  std::int32_t round = 0;
  for (int distance = 1; distance < world_size; distance *= 2, ++round) {
    const auto previous_receive = static_cast<std::int32_t>(schedule.ops.size()) - 1;
    schedule.ops.push_back(send_op((rank + distance) % world_size, nothing, round));
    schedule.ops.push_back(receive_op((rank + world_size - distance) % world_size, nothing, round));
    // A round's signal says that all earlier rounds' signals have come in.
    if (round > 0) schedule.ops[schedule.ops.size() - 2].after = {previous_receive};
  }
  return schedule;
}

}  // namespace moesaic
