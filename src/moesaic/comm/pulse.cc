#include "moesaic/comm/pulse.h"

#include <algorithm>
#include <new>

#include "moesaic/core/error.h"

namespace moesaic {

void Pulse::beat() {
  {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  moved_.notify_all();
}

std::uint64_t Pulse::wait(std::uint64_t seen, Clock::time_point deadline, Clock::duration attentive) {
  for (const auto until = std::min(Clock::now() + attentive, deadline); Clock::now() < until;) {
    if (count() != seen) return count();
  }
  std::unique_lock lock(mutex_);
  moved_.wait_until(lock, deadline, [&] { return count_ != seen; });
  return count_;
}

bool LossRecord::record(int rank, const std::string& what) noexcept {
  const std::lock_guard lock(mutex_);
  if (is_set()) return false;
  rank_ = rank;
  try {
    what_ = what;
  } catch (const std::bad_alloc&) {
    // The rank alone must do.
  }
  set_.store(true, std::memory_order_release);
  return true;
}

void LossRecord::raise() const { throw PeerLost(rank_, what_); }

}  // namespace moesaic
