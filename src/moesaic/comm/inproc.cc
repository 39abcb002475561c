#include "moesaic/comm/inproc.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "moesaic/comm/pulse.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rank_prefix.h"

namespace moesaic {
namespace {

enum class Stage { kWaiting, kCopying, kDone, kSizesDiffer };

// One side of a message. Stages change under the receiver's inbox mutex.
struct Side {
  int rank;  // whose side this is
  int peer;
  Tag tag;
  std::byte* data;  // a sender's bytes are only ever read
  std::size_t bytes;
  std::atomic<Stage> stage{Stage::kWaiting};
  std::size_t peer_bytes = 0;  // set with kSizesDiffer
};

using SidePtr = std::shared_ptr<Side>;
enum Direction : std::size_t { kSending = 0, kReceiving = 1 };

// What has been posted for one receiver and not been matched yet.
struct Inbox {
  std::mutex mutex;
  std::condition_variable copied;
  std::map<std::pair<int, Tag>, std::array<std::deque<SidePtr>, 2>> waiting;  // by (sender, tag)
};

struct Job {
  explicit Job(int size)
      : attentive(static_cast<unsigned>(size) <= std::thread::hardware_concurrency() ? kAttentive
                                                                                     : Clock::duration{}),
        inboxes(static_cast<std::size_t>(size)),
        pulses(static_cast<std::size_t>(size)),
        finished(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(inboxes.size()); }
  Inbox& inbox(int rank) { return inboxes[static_cast<std::size_t>(rank)]; }
  Pulse& pulse(int rank) { return pulses[static_cast<std::size_t>(rank)]; }
  std::atomic<bool>& has_finished(int rank) { return finished[static_cast<std::size_t>(rank)]; }
  void beat_all() {
    for (Pulse& pulse : pulses) pulse.beat();
  }

  // Where ranks share cores, looking would keep away the very rank that is waited for.
  const Clock::duration attentive;
  std::vector<Inbox> inboxes;
  std::vector<Pulse> pulses;
  std::vector<std::atomic<bool>> finished;
  LossRecord loss;
};

class InprocMessage final : public Message {
 public:
  InprocMessage(std::shared_ptr<Job> job, SidePtr side, Direction direction)
      : job_(std::move(job)), side_(std::move(side)), direction_(direction) {
    meet();
  }

  // The other side may be copying from or into our buffer right now: wait for it, then let go.
  ~InprocMessage() override {
    Inbox& inbox = job_->inbox(receiver());
    std::unique_lock lock(inbox.mutex);
    inbox.copied.wait(lock, [&] { return side_->stage != Stage::kCopying; });
    if (side_->stage != Stage::kWaiting) return;
    const auto found = inbox.waiting.find({sender(), side_->tag});
    std::erase(found->second[direction_], side_);
    forget_if_empty(inbox, found);
  }

  bool done() override {
    job_->loss.check();
    // Read before the stage: whatever the peer did, it did before it finished.
    const bool peer_finished = job_->has_finished(side_->peer);
    switch (side_->stage.load(std::memory_order_acquire)) {
      case Stage::kDone:
        return true;
      case Stage::kCopying:
        return false;
      case Stage::kWaiting:
        if (peer_finished) {
          throw PeerLost(
              side_->peer,
              fmt::format("rank {} has finished, but rank {} still expects to {} {} bytes", side_->peer,
                          side_->rank, direction_ == kSending ? "send it" : "receive from it", side_->bytes));
        }
        return false;
      case Stage::kSizesDiffer:
        break;
    }
    const bool sending = direction_ == kSending;
    throw CorruptData(fmt::format("rank {} sends {} bytes, but rank {} expects {} (tag {:#x})", sender(),
                                  sending ? side_->bytes : side_->peer_bytes, receiver(),
                                  sending ? side_->peer_bytes : side_->bytes, side_->tag));
  }

 private:
  int sender() const { return direction_ == kSending ? side_->rank : side_->peer; }
  int receiver() const { return direction_ == kSending ? side_->peer : side_->rank; }

  static void forget_if_empty(Inbox& inbox, decltype(Inbox::waiting)::iterator place) {
    if (place->second[kSending].empty() && place->second[kReceiving].empty()) inbox.waiting.erase(place);
  }

  // Finds the other side and copies, or waits for it in the inbox.
  void meet() {
    Inbox& inbox = job_->inbox(receiver());
    SidePtr other;
    {
      const std::lock_guard lock(inbox.mutex);
      const auto place = inbox.waiting.try_emplace({sender(), side_->tag}).first;
      auto& opposite = place->second[1 - direction_];
      if (opposite.empty()) {
        place->second[direction_].push_back(side_);
        return;
      }
      other = std::move(opposite.front());
      opposite.pop_front();
      forget_if_empty(inbox, place);
      if (other->bytes != side_->bytes) {
        other->peer_bytes = side_->bytes;
        side_->peer_bytes = other->bytes;
        other->stage = side_->stage = Stage::kSizesDiffer;
      } else {
        other->stage = Stage::kCopying;
      }
    }
    if (side_->stage != Stage::kSizesDiffer) {
      Side& from = direction_ == kSending ? *side_ : *other;
      Side& to = direction_ == kSending ? *other : *side_;
      if (from.bytes > 0) std::memmove(to.data, from.data, from.bytes);
      {
        const std::lock_guard lock(inbox.mutex);
        other->stage = side_->stage = Stage::kDone;
      }
      inbox.copied.notify_all();
    }
    job_->pulse(side_->peer).beat();
    if (side_->peer != side_->rank) job_->pulse(side_->rank).beat();
  }

  std::shared_ptr<Job> job_;
  SidePtr side_;
  Direction direction_;
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<Job> job, int rank) : job_(std::move(job)), rank_(rank) {}

  ~InprocTransport() override {
    job_->has_finished(rank_) = true;
    job_->beat_all();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return job_->size(); }

  std::unique_ptr<Message> send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return post(peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size(), kSending);
  }
  std::unique_ptr<Message> receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    return post(peer, tag, bytes.data(), bytes.size(), kReceiving);
  }

  std::uint64_t progress() override {
    job_->loss.check();
    return job_->pulse(rank_).count();
  }
  std::uint64_t wait_for_progress(std::uint64_t seen, Clock::time_point deadline) override {
    const std::uint64_t count = job_->pulse(rank_).wait(seen, deadline, job_->attentive);
    job_->loss.check();
    return count;
  }

  void abort(const std::string& reason) noexcept override {
    std::string what;
    try {
      what = fmt::format("rank {} aborted: {}", rank_, reason);
    } catch (...) {
      // Out of memory: the rank alone must do.
    }
    if (job_->loss.record(rank_, what)) job_->beat_all();
  }

 private:
  std::unique_ptr<Message> post(int peer, Tag tag, std::byte* data, std::size_t bytes, Direction direction) {
    job_->loss.check();
    require(peer >= 0 && peer < world_size(), "peer {} is not in 0..{}", peer, world_size() - 1);
    require(tag < (Tag{1} << 31), "tag {:#x} does not fit in 31 bits", tag);
    auto side = std::make_shared<Side>(rank_, peer, tag, data, bytes);
    return std::make_unique<InprocMessage>(job_, std::move(side), direction);
  }

  std::shared_ptr<Job> job_;
  int rank_;
};

std::vector<std::unique_ptr<Transport>> transports_of(const std::shared_ptr<Job>& job) {
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < job->size(); ++rank) {
    transports.push_back(std::make_unique<InprocTransport>(job, rank));
  }
  return transports;
}

std::shared_ptr<Job> make_job(int world_size) {
  require(world_size >= 1, "a job needs at least one rank, got {}", world_size);
  return std::make_shared<Job>(world_size);
}

// What a rank threw: a copy with "rank R: " in front, its class kept (a foreign class becomes Error).
struct Failure {
  std::exception_ptr error;
  std::string what;
  bool peer_lost = false;
};

Failure current_failure(int rank) {
  Failure failure;
  const auto keep = [&](const char* what, auto make) {
    failure.what = what;
    failure.error = std::make_exception_ptr(make(with_rank(rank, failure.what)));
  };
  try {
    throw;
  } catch (const PeerLost& e) {
    failure.peer_lost = true;
    keep(e.what(), [&](const std::string& what) { return PeerLost(e.rank(), what); });
  } catch (const InvalidArgument& e) {
    keep(e.what(), [](const std::string& what) { return InvalidArgument(what); });
  } catch (const CorruptData& e) {
    keep(e.what(), [](const std::string& what) { return CorruptData(what); });
  } catch (const IoError& e) {
    keep(e.what(), [](const std::string& what) { return IoError(what); });
  } catch (const NonFinite& e) {
    keep(e.what(), [](const std::string& what) { return NonFinite(what); });
  } catch (const std::exception& e) {
    keep(e.what(), [](const std::string& what) { return Error(what); });
  } catch (...) {
    keep("an exception of an unknown class", [](const std::string& what) { return Error(what); });
  }
  return failure;
}

}  // namespace

std::vector<std::unique_ptr<Transport>> make_inproc_transports(int world_size) {
  return transports_of(make_job(world_size));
}

void run_inproc(int world_size, const std::function<void(Transport&)>& body) {
  const auto job = make_job(world_size);
  auto transports = transports_of(job);
  std::mutex mutex;
  std::exception_ptr cause;        // the first error that is not the echo of another rank's abort
  std::exception_ptr consequence;  // the first echo
  const auto run_rank = [&](int rank) {
    auto& transport = transports[static_cast<std::size_t>(rank)];
    try {
      body(*transport);
    } catch (...) {
      const Failure failure = current_failure(rank);
      const std::lock_guard lock(mutex);
      const bool echo = failure.peer_lost && job->loss.is_set() && job->loss.rank() != rank;
      auto& place = echo ? consequence : cause;
      if (!place) place = failure.error;
      transport->abort(failure.what);
    }
    transport.reset();  // from here on, whoever waits for this rank is told that it has finished
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  if (consequence) std::rethrow_exception(consequence);
}

}  // namespace moesaic
