// pulse.h: two small pieces every transport needs: a count to sleep on, and the record of a loss.
//
// Local; thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "moesaic/comm/transport.h"

namespace moesaic {

// A waiting thread looks without pause for so long before it sleeps: longer than a short message takes, and
// than it costs to fall asleep and be woken. (It does not yield: on a busy machine that would cost it its
// turn.)
inline constexpr std::chrono::microseconds kAttentive{50};

// Counts events; sleepers wait for the count to move on (Transport::progress, wait_for_progress).
class Pulse {
 public:
  void beat();
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }
  // Looks without pause for `attentive`, then sleeps.
  std::uint64_t wait(std::uint64_t seen, Clock::time_point deadline, Clock::duration attentive = {});

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::atomic<std::uint64_t> count_{0};  // moves under the mutex
};

// Remembers the first loss it was told of; from then on check() throws it.
class LossRecord {
 public:
  // False when something was recorded before.
  bool record(int rank, const std::string& what) noexcept;
  void check() const {
    if (set_.load(std::memory_order_acquire)) raise();
  }
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  // Of the recorded loss; -1 while there is none.
  int rank() const { return is_set() ? rank_ : -1; }

 private:
  [[noreturn]] void raise() const;

  std::mutex mutex_;
  std::atomic<bool> set_{false};  // rank_ and what_ are final once this is true
  int rank_ = -1;
  std::string what_;
};

}  // namespace moesaic
