#include "bench/paced_transport.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

TEST(PacedTransport, DeliversTheSameBytesAndNoSoonerThanTheLink) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kBytes = 10'000;
  const LinkSpeed speed{8e6, std::chrono::microseconds(500)};  // 1 byte per us
  run_inproc(kRanks, [&](Transport& transport) {
    const auto paced = make_paced_transport(transport, speed);
    Communicator world(*paced, Topology::one_node(kRanks), std::chrono::seconds(60));
    std::vector<std::byte> mine(kBytes, std::byte(transport.rank())), all(kRanks * kBytes);
    const std::vector<std::int64_t> bytes(kRanks, kBytes);
    const auto start = Clock::now();
    all_gather_v(world, mine, bytes, all);
    // Two parts come in through one link.
    EXPECT_GE(Clock::now() - start, std::chrono::microseconds(2 * kBytes + 500));
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], std::byte(i / kBytes)) << i;
  });
}

// Between a look at a message and the wait for it, a thread may be anywhere else for as long as it likes.
TEST(PacedTransport, AMessageThatComesBeforeTheWaitForItEndsTheWait) {
  run_inproc(2, [](Transport& transport) {
    const auto paced = make_paced_transport(transport, {1e9, std::chrono::milliseconds(2)});
    std::byte byte{7};
    if (transport.rank() == 0) {
      const auto sent = paced->send(1, 5, {&byte, 1});
      while (!sent->done()) std::this_thread::yield();
      return;
    }
    const auto received = paced->receive(0, 5, {&byte, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // by now it has reached the link
    const bool at_once = received->done();
    const std::uint64_t seen = paced->progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    if (!at_once) paced->wait_for_progress(seen, deadline);
    EXPECT_LT(Clock::now(), deadline);
    EXPECT_TRUE(received->done());
  });
}

TEST(PacedTransport, StillNoticesALostPeer) {
  EXPECT_THROW(
      run_inproc(2,
                 [](Transport& transport) {
                   const auto paced = make_paced_transport(transport, {1e9, std::chrono::microseconds(1)});
                   Communicator world(*paced, Topology::one_node(2), std::chrono::milliseconds(50));
                   if (transport.rank() == 0) barrier(world);
                 }),
      PeerLost);
}

}  // namespace
}  // namespace moesaic::bench
