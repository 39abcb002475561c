#include <bit>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {

Schedule broadcast_schedule(int world_size, int rank, int root, std::int64_t bytes) {
  require_rank("broadcast: rank", rank, world_size);
  require_rank("broadcast: root", root, world_size);
  require(bytes >= 0, "broadcast: {} bytes; the size must not be negative", bytes);
  Schedule schedule;
  const Range all{BufferId::kOutput, 0, bytes};
  // Counted from the root, place p hears from p without its lowest set bit, and tells p + b for each power b
  // below that bit, the largest subtree first.
  const int place = (rank + world_size - root) % world_size;
  const auto rank_of = [&](int p) { return (p + root) % world_size; };
  int reach =
      place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(world_size))) : place & -place;
  if (place != 0) schedule.ops.push_back(receive_op(rank_of(place - reach), all));
  while (reach /= 2) {
    if (place + reach >= world_size) continue;
    Op send = send_op(rank_of(place + reach), all);
    if (place != 0) send.after = {0};
    schedule.ops.push_back(std::move(send));
  }
  return schedule;
}

}  // namespace moesaic
