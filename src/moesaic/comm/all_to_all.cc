#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {

Schedule all_to_all_v_schedule(int world_size, int rank, std::span<const std::int64_t> send_bytes,
                               std::span<const std::int64_t> receive_bytes) {
  require_rank("all_to_all_v: rank", rank, world_size);
  const auto send_begin = offsets_of("all_to_all_v: send_bytes", send_bytes, world_size);
  const auto receive_begin = offsets_of("all_to_all_v: receive_bytes", receive_bytes, world_size);
  const auto self = static_cast<std::size_t>(rank);
  require(send_bytes[self] == receive_bytes[self],
          "all_to_all_v: rank {} sends itself {} bytes but expects {}", rank, send_bytes[self],
          receive_bytes[self]);
  Schedule schedule;
  for (int step = 1; step < world_size; ++step) {
    const int from = (rank + world_size - step) % world_size;
    const int to = (rank + step) % world_size;
    schedule.ops.push_back(receive_op(from, part_of(BufferId::kOutput, receive_begin, from)));
    schedule.ops.push_back(send_op(to, part_of(BufferId::kInput, send_begin, to)));
  }
  schedule.ops.push_back(
      copy_op(part_of(BufferId::kInput, send_begin, rank), part_of(BufferId::kOutput, receive_begin, rank)));
  return schedule;
}

}  // namespace moesaic
