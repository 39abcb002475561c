#include "moesaic/comm/executor.h"

#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <queue>
#include <utility>

#include "moesaic/comm/communicator_state.h"
#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

// The group whose background thread this is.
thread_local const Communicator::State* background_of = nullptr;

bool is_message(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kReceive; }

class Validation {
 public:
  Validation(const Communicator::State& state, std::string_view name, const Schedule& schedule,
             ScheduleBuffers buffers)
      : group_size_(state.topology.world_size()), name_(name), schedule_(schedule), buffers_(buffers) {}

  void run() {
    for (std::size_t i = 0; i < schedule_.ops.size(); ++i)
      check(static_cast<std::int64_t>(i), schedule_.ops[i]);
  }

 private:
  void check(std::int64_t i, const Op& op) {
    for (const std::int32_t earlier : op.after) {
      require(earlier >= 0 && earlier < i, "{}: operation {} depends on {}, which is not before it", name_, i,
              earlier);
    }
    if (is_message(op.kind)) {
      require(op.peer >= 0 && op.peer < group_size_, "{}: operation {} names peer {}; the group has {} ranks",
              name_, i, op.peer, group_size_);
      require(op.slot >= 0 && op.slot < (1 << kSlotBits), "{}: operation {} has slot {}, not in 0..{}", name_,
              i, op.slot, (1 << kSlotBits) - 1);
    }
    if (op.kind == OpKind::kSend || op.kind == OpKind::kCopy) check(i, op.source, false);
    if (op.kind != OpKind::kSend) check(i, op.target, op.kind != OpKind::kNotify);
    if (op.kind == OpKind::kCopy) {
      require(op.source.bytes == op.target.bytes, "{}: operation {} copies {} bytes to {}", name_, i,
              op.source.bytes, op.target.bytes);
    }
    if (op.kind == OpKind::kSum) {
      const std::int64_t count = op.target.bytes / size_of(op.result);
      require(count * size_of(op.result) == op.target.bytes, "{}: operation {} stores {} bytes of {}", name_,
              i, op.target.bytes, name_of(op.result));
      for (const auto& node : op.parts) {
        for (const Range& part : node) {
          check(i, part, false);
          require(part.bytes == count * size_of(op.wire),
                  "{}: operation {} adds a part of {} bytes; expected {}", name_, i, part.bytes,
                  count * size_of(op.wire));
        }
      }
    }
  }

  void check(std::int64_t i, const Range& range, bool written) {
    require(!written || range.buffer != BufferId::kInput, "{}: operation {} writes to the input", name_, i);
    const std::int64_t size = range.buffer == BufferId::kScratch   ? schedule_.scratch_bytes
                              : range.buffer == BufferId::kInput   ? std::ssize(buffers_.input)
                              : range.buffer == BufferId::kStaging ? std::ssize(buffers_.staging)
                                                                   : std::ssize(buffers_.output);
    require(
        range.offset >= 0 && range.bytes >= 0 && range.offset <= size && range.bytes <= size - range.offset,
        "{}: operation {} touches bytes {} + {} of a buffer of {}", name_, i, range.offset, range.bytes,
        size);
  }

  int group_size_;
  std::string_view name_;
  const Schedule& schedule_;
  ScheduleBuffers buffers_;
};

// Scratch memory for one operation: the group's spare one if it is free and large enough.
class Scratch {
 public:
  Scratch(Communicator::State& state, std::int64_t bytes) : state_(state) {
    if (bytes == 0) return;
    {
      const std::lock_guard lock(state_.scratch_mutex);
      buffer_ = std::move(state_.spare_scratch);
      state_.spare_scratch = Buffer();
    }
    if (buffer_.bytes() < bytes) buffer_ = Buffer(bytes);
  }
  ~Scratch() {
    const std::lock_guard lock(state_.scratch_mutex);
    if (buffer_.bytes() > state_.spare_scratch.bytes()) state_.spare_scratch = std::move(buffer_);
  }
  std::byte* data() { return buffer_.data(); }

 private:
  Communicator::State& state_;
  Buffer buffer_;
};

class Execution {
 public:
  Execution(Communicator::State& state, std::string_view name, const Schedule& schedule,
            ScheduleBuffers buffers, std::uint32_t sequence, bool foreground, const OnNotify& on_notify)
      : state_(state),
        name_(name),
        schedule_(schedule),
        buffers_(buffers),
        sequence_(sequence),
        foreground_(foreground),
        on_notify_(on_notify),
        scratch_(state, schedule.scratch_bytes),
        missing_(schedule.ops.size(), 0),
        followers_(schedule.ops.size()) {
    for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
      missing_[i] = schedule.ops[i].after.size();
      for (const std::int32_t earlier : schedule.ops[i].after) {
        followers_[static_cast<std::size_t>(earlier)].push_back(i);
      }
      if (missing_[i] == 0) ready_.push(i);
    }
  }

  void run() {
    Transport& transport = *state_.transport;
    auto last_progress = Clock::now();
    for (;;) {
      // Read before looking, so that whatever comes in after the look ends the sleep at once.
      const std::uint64_t seen = transport.progress();
      if (run_ready() || poll()) {
        last_progress = Clock::now();
        continue;
      }
      if (outstanding_.empty()) return;
      const auto deadline = last_progress + state_.timeout;
      wait(seen, deadline);
      if (Clock::now() < deadline) continue;
      if (!poll()) throw lost();
      last_progress = Clock::now();
    }
  }

 private:
  struct Outstanding {
    std::size_t op;
    std::unique_ptr<Message> message;
  };

  void wait(std::uint64_t seen, Clock::time_point deadline) {
    // In the background nobody stands still: there the operation's own span says it all.
    const Span span(foreground_ ? state_.trace.tracer : nullptr,
                    {.phase = state_.trace.phase, .name = name_, .waiting = true});
    state_.transport->wait_for_progress(seen, deadline);
  }

  int world_rank(int rank) const { return state_.world_ranks[static_cast<std::size_t>(rank)]; }

  const std::byte* read(const Range& range) {
    if (range.buffer == BufferId::kInput) return buffers_.input.data() + range.offset;
    return write(range);
  }
  std::byte* write(const Range& range) {
    std::byte* const base = range.buffer == BufferId::kScratch   ? scratch_.data()
                            : range.buffer == BufferId::kStaging ? buffers_.staging.data()
                                                                 : buffers_.output.data();
    return base + range.offset;
  }

  bool run_ready() {
    bool any = false;
    for (; !ready_.empty(); any = true) {
      const std::size_t i = ready_.top();
      ready_.pop();
      const Op& op = schedule_.ops[i];
      if (is_message(op.kind)) {
        post(i, op);
      } else {
        compute(op);
        finish(i);
      }
    }
    return any;
  }

  void post(std::size_t i, const Op& op) {
    Transport& transport = *state_.transport;
    const int peer = world_rank(op.peer);
    const Tag tag = state_.tag(sequence_, op.slot);
    if (op.kind == OpKind::kReceive) {
      const auto bytes = static_cast<std::size_t>(op.target.bytes);
      outstanding_.push_back({i, transport.receive(peer, tag, {write(op.target), bytes})});
      return;
    }
    const auto bytes = static_cast<std::size_t>(op.source.bytes);
    outstanding_.push_back({i, transport.send(peer, tag, {read(op.source), bytes})});
    const bool near = state_.topology.node_of(op.peer) == state_.topology.node_of(state_.rank);
    (near ? state_.intra_node_bytes : state_.inter_node_bytes) += op.source.bytes;
    ++state_.messages;
  }

  void compute(const Op& op) {
    if (op.kind == OpKind::kNotify) {
      if (on_notify_) on_notify_(op);
    } else if (op.kind == OpKind::kCopy) {
      const std::byte* source = read(op.source);
      std::byte* target = write(op.target);
      if (op.source.bytes > 0 && source != target) {
        std::memmove(target, source, static_cast<std::size_t>(op.source.bytes));
      }
    } else {
      std::vector<std::vector<const std::byte*>> parts;
      for (const auto& node : op.parts) {
        auto& of_node = parts.emplace_back();
        for (const Range& part : node) of_node.push_back(read(part));
      }
      ordered_sum(op.wire, parts, op.target.bytes / size_of(op.result), op.result, write(op.target));
    }
  }

  void finish(std::size_t i) {
    for (const std::size_t follower : followers_[i]) {
      if (--missing_[follower] == 0) ready_.push(follower);
    }
  }

  // True when some message has finished.
  bool poll() {
    const std::size_t before = outstanding_.size();
    std::erase_if(outstanding_, [&](Outstanding& outstanding) {
      if (!outstanding.message->done()) return false;
      finish(outstanding.op);
      return true;
    });
    return outstanding_.size() < before;
  }

  PeerLost lost() const {
    constexpr std::size_t kNamed = 8;
    std::string waiting_for;
    int first = -1;
    bool first_is_receive = false;
    for (std::size_t i = 0; i < outstanding_.size(); ++i) {
      const Op& op = schedule_.ops[outstanding_[i].op];
      const int peer = world_rank(op.peer);
      const bool receive = op.kind == OpKind::kReceive;
      // A missing message says more about its sender than an uncollected one about its receiver.
      if (first < 0 || (receive && !first_is_receive)) {
        first = peer;
        first_is_receive = receive;
      }
      if (i >= kNamed) continue;
      waiting_for += fmt::format("{}{} bytes {} rank {}", i == 0 ? "" : ", ",
                                 receive ? op.target.bytes : op.source.bytes, receive ? "from" : "to", peer);
    }
    if (outstanding_.size() > kNamed)
      waiting_for += fmt::format(" and {} more", outstanding_.size() - kNamed);
    return PeerLost(first, fmt::format("rank {} made no progress in {} for {} ms; it still waits for {}",
                                       world_rank(state_.rank), name_, state_.timeout.count(), waiting_for));
  }

  Communicator::State& state_;
  std::string_view name_;
  const Schedule& schedule_;
  ScheduleBuffers buffers_;
  std::uint32_t sequence_;
  bool foreground_;
  const OnNotify& on_notify_;
  Scratch scratch_;
  std::vector<std::size_t> missing_;                 // by operation: how many it still waits for
  std::vector<std::vector<std::size_t>> followers_;  // by operation: who waits for it
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready_;
  std::vector<Outstanding> outstanding_;  // after the buffers: messages let go of them before they go
};

void execute_at(Communicator::State& state, std::string_view name, const Schedule& schedule,
                ScheduleBuffers buffers, std::uint32_t sequence, bool foreground, const OnNotify& on_notify) {
  state.loss.check();
  try {
    Execution(state, name, schedule, buffers, sequence, foreground, on_notify).run();
  } catch (const PeerLost& e) {
    state.loss.record(e.rank(), e.what());
    throw;
  }
}

}  // namespace

void execute(Communicator& group, std::string_view name, const Schedule& schedule, ScheduleBuffers buffers,
             const OnNotify& on_notify) {
  Communicator::State& state = group.state();
  Validation(state, name, schedule, buffers).run();
  const bool foreground = background_of == nullptr;
  SpanInfo info{.phase = state.trace.phase, .name = name};
  if (!foreground) info.lane = background_of->trace.lane;
  const Span span(state.trace.tracer, info);
  execute_at(state, name, schedule, buffers, state.next_sequence++, foreground, on_notify);
}

namespace {

// Runs `job` on the group's background thread; `is_known(error)`: the peers know of it themselves. Of any
// other error they are told by an abort: they wait for messages that never come, and who unwinds here waits
// for the operations started after this one, and so for those peers.
template <typename IsKnown>
Pending in_background(Communicator::State& state, std::function<void()> job, IsKnown is_known) {
  std::call_once(state.worker_made, [&] { state.worker = std::make_unique<Worker>(); });
  return state.worker->run([&state, job = std::move(job), is_known] {
    background_of = &state;
    try {
      job();
    } catch (const std::exception& error) {
      if (!is_known(error)) state.transport->abort(error.what());
      throw;
    }
  });
}

template <typename E>
bool is_a(const std::exception& error) {
  return dynamic_cast<const E*>(&error) != nullptr;
}

}  // namespace

Pending start(Communicator& group, std::string name, Schedule schedule, ScheduleBuffers buffers,
              OnNotify on_notify, std::string_view span) {
  Communicator::State& state = group.state();  // outlives the worker, wherever the Communicator is moved
  Validation(state, name, schedule, buffers).run();
  const std::uint32_t sequence = state.next_sequence++;
  auto job = [&state, name = std::move(name), schedule = std::move(schedule), buffers, sequence,
              on_notify = std::move(on_notify), span] {
    const Span traced(state.trace.tracer, {.phase = state.trace.phase,
                                           .name = span.empty() ? std::string_view(name) : span,
                                           .lane = state.trace.lane});
    execute_at(state, name, schedule, buffers, sequence, /*foreground=*/false, on_notify);
  };
  // A refused or lost message has two ends, and both see it.
  return in_background(state, std::move(job), is_a<Error>);
}

Pending start_job(Communicator& group, std::function<void()> job, std::string_view span) {
  Communicator::State& state = group.state();
  auto traced_job = [&state, job = std::move(job), span] {
    const Span traced(state.trace.tracer,
                      {.phase = state.trace.phase, .name = span, .lane = state.trace.lane});
    job();
  };
  return in_background(state, std::move(traced_job), is_a<PeerLost>);
}

}  // namespace moesaic
