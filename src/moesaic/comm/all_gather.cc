#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {

Schedule all_gather_v_schedule(int world_size, int rank, std::span<const std::int64_t> bytes_per_rank,
                               std::span<const std::int64_t> offsets) {
  require_rank("all_gather_v: rank", rank, world_size);
  const auto begin = placed_offsets("all_gather_v", offsets, bytes_per_rank, world_size);
  const auto part = [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    return Range{BufferId::kOutput, begin[at], bytes_per_rank[at]};
  };
  const Range mine{BufferId::kInput, 0, bytes_per_rank[static_cast<std::size_t>(rank)]};
  Schedule schedule;
  for (int step = 1; step < world_size; ++step) {
    const int from = (rank + world_size - step) % world_size;
    schedule.ops.push_back(receive_op(from, part(from)));
    schedule.ops.push_back(send_op((rank + step) % world_size, mine));
  }
  schedule.ops.push_back(copy_op(mine, part(rank)));
  return schedule;
}

}  // namespace moesaic
