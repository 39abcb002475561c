// communicator_state.h: what a Communicator holds; for the executor, not for callers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/comm/pulse.h"
#include "moesaic/comm/worker.h"
#include "moesaic/core/buffer.h"

namespace moesaic {

// A tag: channel (4 bits), sequence number of the operation on its communicator (13), slot within its
// schedule (6). Together 23 bits: Open MPI over UCX (InfiniBand) allows no more. The sequence wraps after
// 8,192 operations. That is harmless: messages with equal tags match in the order they were posted.
inline constexpr int kChannelBits = 4;
inline constexpr int kSequenceBits = 13;
inline constexpr int kSlotBits = 6;
static_assert(kChannelBits + kSequenceBits + kSlotBits == kTagBits);

struct Communicator::State {
  Transport* transport;
  Topology topology;
  std::vector<int> world_ranks;
  int rank;
  int channel;
  std::chrono::milliseconds timeout;
  TraceOptions trace;

  std::atomic<std::uint32_t> next_sequence{0};
  std::atomic<std::int64_t> inter_node_bytes{0}, intra_node_bytes{0}, messages{0};
  // After a loss every later operation fails at once, instead of running into its own timeout.
  LossRecord loss;

  // The scratch memory of the last operation, kept for the next (fresh pages cost more than the sums in
  // them).
  std::mutex scratch_mutex;
  Buffer spare_scratch;

  std::once_flag worker_made;
  std::unique_ptr<Worker> worker;  // last member: drained and joined before the rest goes

  Tag tag(std::uint32_t sequence, std::int32_t slot) const {
    const Tag wrapped = sequence & ((Tag{1} << kSequenceBits) - 1);
    return static_cast<Tag>(channel) << (kSequenceBits + kSlotBits) | wrapped << kSlotBits |
           static_cast<Tag>(slot);
  }
};

}  // namespace moesaic
