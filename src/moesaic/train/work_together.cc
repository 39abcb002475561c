#include "moesaic/train/work_together.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <span>

#include "moesaic/comm/collectives.h"

namespace moesaic {

void work_together(Communicator& world, const std::function<void()>& work) {
  if (world.size() == 1) return work();
  // Its destructor waits for the work, which borrows what the caller holds.
  std::future<void> result = std::async(std::launch::async, work);
  const auto between_meetings = std::clamp<std::chrono::milliseconds>(
      world.timeout() / 4, std::chrono::milliseconds(1), std::chrono::milliseconds(1000));
  for (std::int64_t working = 1; working > 0;) {
    const bool done = !result.valid() || result.wait_for(between_meetings) == std::future_status::ready;
    if (done && result.valid()) result.get();
    working = done ? 0 : 1;
    all_reduce(world, std::span<std::int64_t>(&working, 1));
  }
}

}  // namespace moesaic
