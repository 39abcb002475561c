#include "moesaic/exchange/flat_route.h"

#include "moesaic/comm/executor.h"
#include "moesaic/comm/layout.h"

namespace moesaic {

Schedule flat_schedule(int group_size, int rank, std::span<const std::int64_t> send_bytes,
                       std::span<const std::int64_t> receive_bytes) {
  require_rank("flat route: rank", rank, group_size);
  const auto send_begin = offsets_of("flat route: bytes to send", send_bytes, group_size);
  const auto receive_begin = offsets_of("flat route: bytes to receive", receive_bytes, group_size);
  Schedule schedule;
  for (int step = 1; step < group_size; ++step) {
    const int from = (rank + group_size - step) % group_size, to = (rank + step) % group_size;
    schedule.ops.push_back(receive_op(from, part_of(BufferId::kOutput, receive_begin, from)));
    schedule.ops.push_back(send_op(to, part_of(BufferId::kInput, send_begin, to)));
  }
  return schedule;
}

void send_flat(Communicator& group, std::string_view name, std::span<const std::byte> send,
               std::span<const std::int64_t> send_bytes, std::span<std::byte> receive,
               std::span<const std::int64_t> receive_bytes) {
  execute(group, name, flat_schedule(group.size(), group.rank(), send_bytes, receive_bytes), {send, receive});
}

}  // namespace moesaic
