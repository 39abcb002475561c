// flipping_transport.h: a transport that damages chosen messages on their way.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "moesaic/comm/transport.h"

namespace moesaic::testing {

class FlippingTransport final : public Transport {
 public:
  // Before a message is sent; true: a bit in its middle is flipped.
  using Chooser = std::function<bool(int peer, std::size_t bytes)>;

  FlippingTransport(Transport& wrapped, Chooser chooser) : wrapped_(wrapped), chooser_(std::move(chooser)) {}

  int rank() const override { return wrapped_.rank(); }
  int world_size() const override { return wrapped_.world_size(); }
  std::unique_ptr<Message> send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    if (!chooser_(peer, bytes.size())) return wrapped_.send(peer, tag, bytes);
    const std::lock_guard lock(mutex_);
    auto& copy = damaged_.emplace_back(bytes.begin(), bytes.end());
    copy[copy.size() / 2] ^= std::byte{0x08};
    return wrapped_.send(peer, tag, copy);
  }
  std::unique_ptr<Message> receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    return wrapped_.receive(peer, tag, bytes);
  }
  std::uint64_t progress() override { return wrapped_.progress(); }
  std::uint64_t wait_for_progress(std::uint64_t seen, Clock::time_point deadline) override {
    return wrapped_.wait_for_progress(seen, deadline);
  }
  void abort(const std::string& reason) noexcept override { wrapped_.abort(reason); }

 private:
  Transport& wrapped_;
  Chooser chooser_;
  std::mutex mutex_;
  std::list<std::vector<std::byte>> damaged_;  // borrowed until the transport goes
};

}  // namespace moesaic::testing
