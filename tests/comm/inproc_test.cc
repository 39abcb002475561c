// Lost, silent and disagreeing ranks on threads: survivors throw soon and say who.
#include "moesaic/comm/inproc.h"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <string>
#include <thread>

#include "moesaic/comm/collectives.h"
#include "tests/comm/thrown.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

using namespace std::chrono_literals;

std::string thrown_on(int world_size, const std::function<void(Communicator&)>& body,
                      std::chrono::milliseconds timeout = kTestTimeout) {
  return thrown_by([&] { run_world(Topology::one_node(world_size), body, timeout); });
}

// What each rank threw.
std::vector<std::string> thrown_per_rank(int world_size, const std::function<void(Communicator&)>& body,
                                         std::chrono::milliseconds timeout = kTestTimeout) {
  std::vector<std::string> thrown(static_cast<std::size_t>(world_size));
  thrown_on(
      world_size,
      [&](Communicator& world) {
        thrown[static_cast<std::size_t>(world.rank())] = thrown_by([&] { body(world); });
        if (thrown[static_cast<std::size_t>(world.rank())] != "nothing") {
          world.transport().abort(thrown[static_cast<std::size_t>(world.rank())]);
        }
      },
      timeout);
  return thrown;
}

TEST(RunInproc, KeepsTheClassOfTheFirstErrorAndNamesTheRank) {
  const auto failing_with = [](auto error) {
    return thrown_on(3, [&](Communicator& world) {
      if (world.rank() == 1) throw error;
      barrier(world);
    });
  };
  EXPECT_EQ(failing_with(InvalidArgument("bad")), "InvalidArgument: rank 1: bad");
  EXPECT_EQ(failing_with(CorruptData("bad")), "CorruptData: rank 1: bad");
  EXPECT_EQ(failing_with(NonFinite("bad")), "NonFinite: rank 1: bad");
  EXPECT_EQ(failing_with(PeerLost(7, "bad")), "PeerLost(7): rank 1: bad");
  EXPECT_EQ(failing_with(std::runtime_error("bad")), "Error: rank 1: bad");
}

TEST(RunInproc, RefusesAWorldOfNobody) {
  EXPECT_SAYS(thrown_by([] { run_inproc(0, [](Transport&) {}); }),
              "InvalidArgument: a job needs at least one rank");
}

// The timeout is a minute, the test's far shorter: survivors must not run into it.
TEST(KilledRank, IsNamedByEverySurvivor) {
  for (const int world_size : {2, 4, 7}) {
    const auto thrown = thrown_per_rank(world_size, [](Communicator& world) {
      barrier(world);
      if (world.rank() == 1) throw NonFinite("met a NaN");
      for (;;) barrier(world);
    });
    for (int rank = 0; rank < world_size; ++rank) {
      const std::string& what = thrown[static_cast<std::size_t>(rank)];
      if (rank == 1) continue;
      EXPECT_SAYS(what, "PeerLost(1): rank 1 aborted: NonFinite: met a NaN");
    }
  }
}

TEST(FinishedRank, IsNamedByWhoeverStillWaitsForIt) {
  EXPECT_SAYS(thrown_on(2,
                        [](Communicator& world) {
                          if (world.rank() == 0) barrier(world);
                        }),
              "PeerLost(1): rank 0: rank 1 has finished, but rank 0 still expects");
}

TEST(SilentRank, IsNamedWithTheOperationAndTheTimeout) {
  const std::string what = thrown_on(
      3,
      [](Communicator& world) {
        if (world.rank() == 2) {
          while (thrown_by([&] { world.transport().progress(); }) == "nothing")
            std::this_thread::sleep_for(1ms);
          return;
        }
        std::vector<std::int64_t> values(3);
        all_reduce(world, std::span(values));
      },
      200ms);
  EXPECT_SAYS(what, "PeerLost(2): ");
  EXPECT_SAYS(what, "made no progress in all_reduce for 200 ms; it still waits for ");
  EXPECT_SAYS(what, "24 bytes from rank 2");
  EXPECT_SAYS(what, "24 bytes to rank 2");
}

TEST(SilentRank, TimeoutCountsFromTheLastProgress) {
  // The last rank comes after more than the timeout, but every 400 ms another one does.
  EXPECT_EQ(thrown_on(
                4,
                [](Communicator& world) {
                  std::this_thread::sleep_for(world.rank() * 400ms);
                  std::vector<std::int64_t> values(1);
                  all_reduce(world, std::span(values));
                },
                1000ms),
            "nothing");
}

TEST(SilentRank, LaterOperationsFailAtOnce) {
  thrown_on(
      2,
      [](Communicator& world) {
        if (world.rank() == 1) {
          while (thrown_by([&] { world.transport().progress(); }) == "nothing")
            std::this_thread::sleep_for(1ms);
          return;
        }
        const std::string first = thrown_by([&] { barrier(world); });
        std::vector<double> values(1);
        EXPECT_SAYS(first, "no progress in barrier");
        EXPECT_EQ(thrown_by([&] { all_reduce(world, std::span(values)); }), first);
        throw Error("done");
      },
      100ms);
}

TEST(SizeDisagreement, IsCorruptDataOnBothEnds) {
  for (const std::int64_t sent : {0, 3, 9}) {  // the receiver expects 4
    const std::string what = thrown_on(2, [&](Communicator& world) {
      const std::int64_t expected = world.rank() == 1 ? 0 : 4;
      const std::vector<std::int64_t> send_bytes{world.rank() == 1 ? sent : 0, 0};
      const std::vector<std::int64_t> receive_bytes{0, expected};
      std::vector<std::byte> send(static_cast<std::size_t>(send_bytes[0])),
          receive(static_cast<std::size_t>(expected));
      all_to_all_v(world, send, send_bytes, receive, receive_bytes);
    });
    EXPECT_SAYS(what, "CorruptData: ");
    EXPECT_SAYS(what, fmt::format("rank 1 sends {} bytes, but rank 0 expects 4", sent));
  }
}

TEST(Abort, EndsABackgroundOperation) {
  const auto thrown = thrown_per_rank(3, [](Communicator& world) {
    const std::vector<std::int64_t> bytes(3, 4);
    const std::vector<std::byte> mine(4);
    std::vector<std::byte> all(12);
    if (world.rank() == 2) {
      std::this_thread::sleep_for(50ms);
      throw Error("enough");
    }
    Pending gather = start_all_gather_v(world, mine, bytes, all);
    gather.wait();
  });
  EXPECT_SAYS(thrown[0], "PeerLost(2): rank 2 aborted: Error: enough");
  EXPECT_SAYS(thrown[1], "PeerLost(2): rank 2 aborted: Error: enough");
}

TEST(Pending, DestructorWaitsAndSwallowsErrors) {
  run_world(Topology::one_node(2), [](Communicator& world) {
    const std::vector<std::int64_t> bytes(2, 4);
    std::vector<std::int32_t> all(2, -1);
    const std::int32_t mine = world.rank();
    if (world.rank() == 1) std::this_thread::sleep_for(50ms);
    start_all_gather_v(world, std::as_bytes(std::span(&mine, 1)), bytes,
                       std::as_writable_bytes(std::span(all)));
    EXPECT_EQ(all, (std::vector<std::int32_t>{0, 1}));
  });
  const auto lost = [](Communicator& world) {
    const std::vector<std::int64_t> bytes(2, 4);
    const std::vector<std::byte> mine(4);
    std::vector<std::byte> all(8);
    if (world.rank() == 0) {
      start_all_gather_v(world, mine, bytes, all);
      throw Error("reached");
    }
    while (thrown_by([&] { world.transport().progress(); }) == "nothing") std::this_thread::sleep_for(1ms);
  };
  EXPECT_EQ(thrown_on(2, lost, 100ms), "Error: rank 0: reached");
}

TEST(Pending, OutlivesAMovedCommunicator) {
  run_world(Topology::one_node(2), [](Communicator& world) {
    const std::vector<int> both{0, 1};
    const std::vector<std::int64_t> bytes(2, 4);
    std::vector<std::int32_t> all(2, -1);
    const std::int32_t mine = world.rank() + 5;
    Communicator group = world.split(both, 1);
    Pending gather = start_all_gather_v(group, std::as_bytes(std::span(&mine, 1)), bytes,
                                        std::as_writable_bytes(std::span(all)));
    const Communicator moved = std::move(group);
    gather.wait();
    EXPECT_TRUE(gather.done());
    EXPECT_EQ(all, (std::vector<std::int32_t>{5, 6}));
  });
}

TEST(Message, EqualTagsMatchInTheOrderPosted) {
  run_inproc(2, [](Transport& transport) {
    std::vector<std::byte> values(10);
    std::vector<std::unique_ptr<Message>> messages;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto one = std::span(values).subspan(i, 1);
      if (transport.rank() == 0) values[i] = static_cast<std::byte>(i);
      messages.push_back(transport.rank() == 0 ? transport.send(1, 7, one) : transport.receive(0, 7, one));
    }
    for (const auto& message : messages) {
      std::uint64_t seen = transport.progress();
      while (!message->done()) seen = transport.wait_for_progress(seen, Clock::now() + kTestTimeout);
    }
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<std::byte>(i));
  });
}

// A receive that is given up at a random moment, also while its sender is copying into the buffer. A write
// after the buffer is gone shows under the address sanitizer, and mostly as a wrong guard value without.
TEST(Message, GivenUpWhileThePeerCopiesLeavesTheBufferAlone) {
  constexpr std::size_t kBytes = 1 << 18;
  constexpr int kRounds = 300;
  const auto transports = make_inproc_transports(2);
  std::vector<std::byte> source(kBytes, std::byte{1});
  for (int round = 0; round < kRounds; ++round) {
    const Tag tag = static_cast<Tag>(round);
    std::latch start(2);
    std::thread sender([&] {
      start.arrive_and_wait();
      const auto message = transports[0]->send(1, tag, source);
    });
    {
      auto buffer = std::make_unique<std::byte[]>(kBytes);
      auto message = transports[1]->receive(0, tag, {buffer.get(), kBytes});
      start.arrive_and_wait();
      if (round % 3 == 1) std::this_thread::yield();
      if (round % 3 == 2) std::this_thread::sleep_for(20us);
      message.reset();
      std::fill_n(buffer.get(), kBytes, std::byte{2});
      std::this_thread::yield();
      EXPECT_EQ(std::count(buffer.get(), buffer.get() + kBytes, std::byte{2}),
                static_cast<std::ptrdiff_t>(kBytes));
    }
    sender.join();
  }
}

TEST(Transport, RefusesPeersAndTagsOutOfRange) {
  const auto transports = make_inproc_transports(2);
  EXPECT_SAYS(thrown_by([&] { transports[0]->send(2, 0, {}); }), "peer 2 is not in 0..1");
  EXPECT_SAYS(thrown_by([&] { transports[0]->receive(-1, 0, {}); }), "peer -1 is not in 0..1");
  EXPECT_SAYS(thrown_by([&] { transports[0]->send(1, Tag{1} << 31, {}); }), "does not fit in 31 bits");
}

}  // namespace
}  // namespace moesaic
