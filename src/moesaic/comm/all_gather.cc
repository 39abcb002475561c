#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {

Schedule all_gather_v_schedule(int world_size, int rank, std::span<const std::int64_t> bytes_per_rank) {
  require_rank("all_gather_v: rank", rank, world_size);
  const auto begin = offsets_of("all_gather_v", bytes_per_rank, world_size);
  const Range mine{BufferId::kInput, 0, bytes_per_rank[static_cast<std::size_t>(rank)]};
  Schedule schedule;
  for (int step = 1; step < world_size; ++step) {
    const int from = (rank + world_size - step) % world_size;
    schedule.ops.push_back(receive_op(from, part_of(BufferId::kOutput, begin, from)));
    schedule.ops.push_back(send_op((rank + step) % world_size, mine));
  }
  schedule.ops.push_back(copy_op(mine, part_of(BufferId::kOutput, begin, rank)));
  return schedule;
}

}  // namespace moesaic
