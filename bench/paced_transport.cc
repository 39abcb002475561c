#include "bench/paced_transport.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace moesaic::bench {
namespace {

// The queue in front of one rank.
class Link {
 public:
  explicit Link(LinkSpeed speed) : speed_(speed) {}

  // A message of `bytes` has reached the link now; returns when it comes out.
  Clock::time_point enter(std::size_t bytes) {
    const std::chrono::duration<double> transfer(8.0 * static_cast<double>(bytes) / speed_.bits_per_s);
    const std::lock_guard lock(mutex_);
    free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(transfer);
    return *arrivals_.insert(free_ + speed_.latency);
  }
  void leave(Clock::time_point arrival) {
    const std::lock_guard lock(mutex_);
    arrivals_.erase(arrivals_.find(arrival));
  }
  // The next arrival, when whoever waits looks again; soon, where one has come that nobody has fetched yet:
  // it may have come between the caller's look and this call.
  Clock::time_point next_arrival(Clock::time_point latest) {
    constexpr std::chrono::microseconds kSoon{50};
    const std::lock_guard lock(mutex_);
    if (arrivals_.empty()) return latest;
    return std::min(latest, std::max(*arrivals_.begin(), Clock::now() + kSoon));
  }

 private:
  LinkSpeed speed_;
  std::mutex mutex_;
  Clock::time_point free_;
  std::multiset<Clock::time_point> arrivals_;
};

class PacedMessage final : public Message {
 public:
  PacedMessage(std::unique_ptr<Message> wrapped, std::size_t bytes, Link& link)
      : wrapped_(std::move(wrapped)), bytes_(bytes), link_(link) {}
  ~PacedMessage() override {
    if (arrival_) link_.leave(*arrival_);
  }

  bool done() override {
    if (!arrival_ && wrapped_->done()) arrival_ = link_.enter(bytes_);
    return arrival_ && Clock::now() >= *arrival_;
  }

 private:
  std::unique_ptr<Message> wrapped_;
  std::size_t bytes_;
  Link& link_;
  std::optional<Clock::time_point> arrival_;
};

class PacedTransport final : public Transport {
 public:
  PacedTransport(Transport& wrapped, LinkSpeed speed) : wrapped_(wrapped), link_(speed) {}

  int rank() const override { return wrapped_.rank(); }
  int world_size() const override { return wrapped_.world_size(); }
  std::unique_ptr<Message> send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return wrapped_.send(peer, tag, bytes);
  }
  std::unique_ptr<Message> receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    return std::make_unique<PacedMessage>(wrapped_.receive(peer, tag, bytes), bytes.size(), link_);
  }
  std::uint64_t progress() override { return wrapped_.progress(); }
  std::uint64_t wait_for_progress(std::uint64_t seen, Clock::time_point deadline) override {
    return wrapped_.wait_for_progress(seen, link_.next_arrival(deadline));
  }
  void abort(const std::string& reason) noexcept override { wrapped_.abort(reason); }

 private:
  Transport& wrapped_;
  Link link_;
};

}  // namespace

std::unique_ptr<Transport> make_paced_transport(Transport& wrapped, LinkSpeed speed) {
  return std::make_unique<PacedTransport>(wrapped, speed);
}

}  // namespace moesaic::bench
