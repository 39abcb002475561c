// held_transport.h: a transport that keeps chosen messages back until they are released: to show what goes on
// without them, by the order of events and never by time.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "moesaic/comm/transport.h"

namespace moesaic {

class HeldTransport final : public Transport {
 public:
  // When a receive is posted; true: it is not done before release().
  using Chooser = std::function<bool(int peer, std::size_t bytes)>;

  HeldTransport(Transport& wrapped, Chooser held) : wrapped_(wrapped), held_(std::move(held)) {}

  void release() { released_ = true; }
  bool released() const { return released_; }

  int rank() const override { return wrapped_.rank(); }
  int world_size() const override { return wrapped_.world_size(); }
  std::unique_ptr<Message> send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    return wrapped_.send(peer, tag, bytes);
  }
  std::unique_ptr<Message> receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    auto message = wrapped_.receive(peer, tag, bytes);
    if (!held_(peer, bytes.size())) return message;
    return std::make_unique<Held>(std::move(message), released_);
  }
  std::uint64_t progress() override { return wrapped_.progress(); }
  std::uint64_t wait_for_progress(std::uint64_t seen, Clock::time_point deadline) override {
    // A release wakes nobody: look again soon.
    return wrapped_.wait_for_progress(seen, std::min(deadline, Clock::now() + std::chrono::milliseconds(1)));
  }
  void abort(const std::string& reason) noexcept override { wrapped_.abort(reason); }

 private:
  class Held final : public Message {
   public:
    Held(std::unique_ptr<Message> wrapped, const std::atomic<bool>& released)
        : wrapped_(std::move(wrapped)), released_(released) {}
    bool done() override { return wrapped_->done() && released_; }

   private:
    std::unique_ptr<Message> wrapped_;
    const std::atomic<bool>& released_;
  };

  Transport& wrapped_;
  Chooser held_;
  std::atomic<bool> released_{false};
};

}  // namespace moesaic
