// transport.h: non-blocking messages between ranks; the one thing a backend must provide.
//
// Algorithms (schedule.h) know only send, receive and wait, never which backend they run on.
// Calls are thread-safe. Backends: inproc.h (ranks are threads), mpi.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace moesaic {

using Clock = std::chrono::steady_clock;

// Messages match by (source, destination, tag), in the order they were posted. kTagBits of it are used.
using Tag = std::uint32_t;
inline constexpr int kTagBits = 23;

// One message under way.
class Message {
 public:
  virtual ~Message() = default;
  // True once the bytes have left (send) or arrived (receive). Throws CorruptData when the sizes of the
  // two sides differ, PeerLost after an abort.
  virtual bool done() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // `bytes` is borrowed until the message is done or the transport is destroyed. Any size, 0 included.
  virtual std::unique_ptr<Message> send(int peer, Tag tag, std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Message> receive(int peer, Tag tag, std::span<std::byte> bytes) = 0;

  // Sleeps until some message of this rank may have made progress since `seen` was read, or `deadline`.
  // Returns the new progress count; never spins.
  virtual std::uint64_t progress() = 0;
  virtual std::uint64_t wait_for_progress(std::uint64_t seen, Clock::time_point deadline) = 0;

  // Makes every present and future call on every rank of the job throw PeerLost naming this rank and
  // `reason`. Never blocks, never throws. The first abort of a job wins.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace moesaic
