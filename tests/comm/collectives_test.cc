#include "moesaic/comm/collectives.h"

#include <array>
#include <atomic>

#include "moesaic/core/error.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

class Collective : public ::testing::TestWithParam<CollectiveCheck> {};

TEST_P(Collective, MatchesItsOracleOnEveryWorld) { for_each_world(GetParam().run); }

INSTANTIATE_TEST_SUITE_P(Inproc, Collective, ::testing::ValuesIn(collective_checks()),
                         [](const auto& info) { return info.param.name; });

TEST(Barrier, NobodyLeavesBeforeEveryoneHasCome) {
  std::array<std::atomic<int>, 100> arrived{};
  for_each_world([&](Communicator& world) {
    if (world.rank() == 0) {
      for (auto& count : arrived) count = 0;
    }
    barrier(world);
    for (auto& count : arrived) {
      ++count;
      barrier(world);
      if (count != world.size())
        throw Error(fmt::format("{} of {} ranks had come", count.load(), world.size()));
    }
    barrier(world);
  });
}

TEST(AllGather, OwnPartMayLieInItsPlaceAlready) {
  for_each_world([](Communicator& world) {
    const auto n = static_cast<std::size_t>(world.size());
    std::vector<std::int32_t> all(n, -1);
    const auto self = static_cast<std::size_t>(world.rank());
    all[self] = world.rank();
    all_gather_v(world, std::as_bytes(std::span(all)).subspan(self * 4, 4), std::vector<std::int64_t>(n, 4),
                 std::as_writable_bytes(std::span(all)));
    for (std::size_t r = 0; r < n; ++r) {
      if (all[r] != static_cast<std::int32_t>(r)) throw Error("wrong part");
    }
  });
}

TEST(ReduceScatter, OrderIsVisible) {
  // (2^24 + 1) + 1 loses both ones; 2^24 + (1 + 1) keeps them: what differs between one node and two.
  const std::array<float, 3> value{16777216.0f, 1.0f, 1.0f};
  const auto sum_on = [&](const Topology& topology) {
    float result = 0;
    run_world(topology, [&](Communicator& world) {
      std::array<float, 1> mine{value[static_cast<std::size_t>(world.rank())]};
      all_reduce(world, std::span<float>(mine));
      if (world.rank() == 0) result = mine[0];
    });
    return result;
  };
  EXPECT_EQ(sum_on(Topology::one_node(3)), 16777216.0f);
  EXPECT_EQ(sum_on(Topology::from_nodes({0, 1, 1})), 16777218.0f);
}

// Every rank makes the same mistake, and then uses the group as if nothing had happened: nothing was sent.
void expect_refused(const std::function<void(Communicator&)>& call, const std::string& expected) {
  run_world(Topology::one_node(2), [&](Communicator& world) {
    try {
      call(world);
    } catch (const InvalidArgument& e) {
      if (std::string(e.what()).find(expected) == std::string::npos)
        throw Error(fmt::format("said: {}", e.what()));
      if (world.traffic().messages != 0) throw Error("something was sent");
      barrier(world);
      return;
    }
    throw Error("expected InvalidArgument: " + expected);
  });
}

TEST(Arguments, AreCheckedBeforeAnythingIsSent) {
  std::array<std::byte, 8> four{}, eight{};
  std::array<float, 2> floats{};
  const auto bytes = std::span<std::byte>(eight);
  const std::vector<std::int64_t> fours{4, 4}, three_counts{4, 4, 4}, negative{4, -1};
  const std::vector<std::int64_t> huge{std::int64_t{1} << 62, std::int64_t{1} << 62};
  const auto part = std::span<std::byte>(four).first(4);
  expect_refused([&](Communicator& w) { broadcast(w, bytes, 2); }, "root: 2 is not in 0..1");
  expect_refused([&](Communicator& w) { broadcast(w, bytes, -1); }, "root: -1");
  expect_refused([&](Communicator& w) { all_gather_v(w, part, three_counts, bytes); },
                 "one count per rank (2), got 3");
  expect_refused([&](Communicator& w) { all_gather_v(w, part, negative, bytes); }, "count of rank 1 is -1");
  expect_refused([&](Communicator& w) { all_gather_v(w, bytes, fours, bytes); }, "mine: expected 4 bytes");
  expect_refused([&](Communicator& w) { all_gather_v(w, part, fours, part); }, "all: expected 8 bytes");
  expect_refused([&](Communicator& w) { start_all_gather_v(w, part, fours, part).wait(); },
                 "all: expected 8 bytes");
  expect_refused([&](Communicator& w) { all_gather_v(w, part, huge, bytes); }, "exceed 2^63 - 1");
  expect_refused([&](Communicator& w) { all_to_all_v(w, part, fours, bytes, fours); },
                 "send: expected 8 bytes");
  expect_refused([&](Communicator& w) { all_to_all_v(w, bytes, fours, bytes, negative); }, "receive_bytes");
  expect_refused([&](Communicator& w) { reduce_scatter_v(w, bytes, DType::kF16, fours, floats); },
                 "fp32 or bf16");
  expect_refused([&](Communicator& w) { reduce_scatter_v(w, bytes, DType::kF32, fours, floats); },
                 "input: expected 32 bytes from the counts, got 8");
  expect_refused(
      [&](Communicator& w) {
        reduce_scatter_v(w, bytes, DType::kF32, std::vector<std::int64_t>{1, 1}, floats);
      },
      "output: expected 1 elements from the counts, got 2");
}

TEST(Split, RefusesWhatItCanSee) {
  const auto split = [](std::vector<int> ranks, int channel) {
    return [ranks, channel](Communicator& world) { world.split(ranks, channel); };
  };
  expect_refused(split({0, 1}, 16), "channel 16 is not in 0..15");
  expect_refused(split({0, 1}, 0), "channel 0 is in use");
  expect_refused(split({1, 0}, 1), "must ascend");
  expect_refused(split({0, 2}, 1), "within 0..1; got 2");
  expect_refused([](Communicator& world) { world.split(std::vector<int>{1 - world.rank()}, 1); },
                 "is not in");
}

}  // namespace
}  // namespace moesaic
