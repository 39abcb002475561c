// Schedules without a transport, the executor's checks, and the sum.
#include "moesaic/comm/schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <tuple>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/comm/executor.h"
#include "moesaic/core/bf16.h"
#include "tests/comm/thrown.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

using Counts = std::vector<std::int64_t>;

// Every message has two ends of one size. Returns the number of messages and their bytes.
std::pair<int, std::int64_t> expect_messages_meet(const std::vector<Schedule>& by_rank) {
  std::map<std::tuple<int, int, int>, std::vector<std::int64_t>> sent, received;
  int num_messages = 0;
  std::int64_t bytes = 0;
  for (int rank = 0; rank < std::ssize(by_rank); ++rank) {
    for (const Op& op : by_rank[static_cast<std::size_t>(rank)].ops) {
      if (op.kind == OpKind::kSend) {
        sent[{rank, op.peer, op.slot}].push_back(op.source.bytes);
        ++num_messages;
        bytes += op.source.bytes;
      } else if (op.kind == OpKind::kReceive) {
        received[{op.peer, rank, op.slot}].push_back(op.target.bytes);
      }
    }
  }
  EXPECT_EQ(sent, received);
  return {num_messages, bytes};
}

TEST(Schedules, EveryMessageHasTwoEnds) {
  for (int world_size = 1; world_size <= 9; ++world_size) {
    const Topology topology = Topology::uniform(world_size, 2);
    const auto n = static_cast<std::size_t>(world_size);
    std::vector<Schedule> barriers, broadcasts, gathers, exchanges, scatters, sums;
    Counts counts(n);
    for (std::size_t r = 0; r < n; ++r) counts[r] = static_cast<std::int64_t>(r % 3);
    for (int rank = 0; rank < world_size; ++rank) {
      Counts sends(n), receives(n);
      for (int peer = 0; peer < world_size; ++peer) {
        sends[static_cast<std::size_t>(peer)] = rank * 10 + peer;
        receives[static_cast<std::size_t>(peer)] = peer * 10 + rank;
      }
      barriers.push_back(barrier_schedule(world_size, rank));
      broadcasts.push_back(broadcast_schedule(world_size, rank, world_size / 2, 10));
      gathers.push_back(all_gather_v_schedule(topology, rank, counts));
      exchanges.push_back(all_to_all_v_schedule(world_size, rank, sends, receives));
      scatters.push_back(reduce_scatter_v_schedule(topology, rank, DType::kBF16, counts));
      sums.push_back(all_reduce_schedule(topology, rank, DType::kF64, 3));
    }
    const int pairs = world_size * (world_size - 1);
    EXPECT_EQ(expect_messages_meet(broadcasts),
              (std::pair<int, std::int64_t>(world_size - 1, 10 * (world_size - 1))));
    EXPECT_EQ(expect_messages_meet(barriers).second, 0);
    EXPECT_EQ(expect_messages_meet(gathers).first, pairs);
    EXPECT_EQ(expect_messages_meet(exchanges).first, pairs);
    EXPECT_EQ(expect_messages_meet(scatters).first, pairs);
    EXPECT_EQ(expect_messages_meet(sums), (std::pair<int, std::int64_t>(pairs, 24 * pairs)));
  }
}

TEST(Schedules, OffsetsOfHugeTensorsAre64BitAndSlicesStayFew) {
  constexpr int kWorldSize = 64;
  constexpr std::int64_t kElements = std::int64_t{300'000} * 8'192;
  const Counts elements(kWorldSize, kElements), bytes(kWorldSize, kElements * 4);
  const auto last_range = [](const Schedule& schedule, OpKind kind) {
    Range last{};
    for (const Op& op : schedule.ops) {
      const Range& range = kind == OpKind::kSend ? op.source : op.target;
      if (op.kind == kind && range.offset >= last.offset) last = range;
    }
    return last;
  };
  const auto expect_at = [](const Range& range, std::int64_t part, std::int64_t bytes_each) {
    EXPECT_EQ(range.offset, part * bytes_each);
    EXPECT_EQ(range.bytes, bytes_each);
  };
  const Schedule gather = all_gather_v_schedule(Topology::one_node(kWorldSize), 0, bytes);
  expect_at(last_range(gather, OpKind::kReceive), 63, kElements * 4);
  const Schedule exchange = all_to_all_v_schedule(kWorldSize, 0, bytes, bytes);
  expect_at(last_range(exchange, OpKind::kReceive), 63, kElements * 4);
  expect_at(last_range(exchange, OpKind::kSend), 63, kElements * 4);
  const Schedule scatter =
      reduce_scatter_v_schedule(Topology::uniform(kWorldSize, 8), 0, DType::kBF16, elements);
  const auto end_of = [&](OpKind kind) {
    const Range last = last_range(scatter, kind);
    return last.offset + last.bytes;
  };
  EXPECT_EQ(end_of(OpKind::kSend), 64 * kElements * 2);
  EXPECT_EQ(end_of(OpKind::kSum), kElements * 4);
  // Two banks of 7 peers and 7 other nodes, two of 7 peers for what is carried, four sums on their way.
  EXPECT_EQ(scatter.scratch_bytes, (2 * 14 + 2 * 7 + 4) * (kElements / 64) * 2);
  EXPECT_LT(scatter.ops.size(), 64u * 64 * 3);
}

TEST(Schedules, RefuseBadCounts) {
  const std::int64_t half = std::int64_t{1} << 62;
  EXPECT_SAYS(thrown_by([&] {
                all_gather_v_schedule(Topology::one_node(2), 0, Counts{half, half});
              }),
              "exceed 2^63 - 1 bytes");
  EXPECT_SAYS(thrown_by([&] {
                all_gather_v_schedule(Topology::one_node(2), 2, Counts{1, 1});
              }),
              "rank: 2 is not in 0..1");
  EXPECT_SAYS(thrown_by([&] {
                all_to_all_v_schedule(2, 0, Counts{1, 1}, Counts{2, 1});
              }),
              "rank 0 sends itself 1 bytes but expects 2");
  EXPECT_SAYS(thrown_by([&] { all_reduce_schedule(Topology::one_node(2), 0, DType::kBF16, 1); }), "got bf16");
  EXPECT_SAYS(thrown_by([&] { all_reduce_schedule(Topology::one_node(2), 0, DType::kF64, half / 8); }),
              "exceeds 2^63 - 1 bytes");
  EXPECT_SAYS(thrown_by([&] { broadcast_schedule(2, 0, 0, -1); }), "must not be negative");
}

std::string executing(const Op& op) {
  return thrown_by([&] {
    run_world(Topology::one_node(1), [&](Communicator& world) {
      std::array<std::byte, 8> input{}, output{};
      execute(world, "drill", {.ops = {op}, .scratch_bytes = 4}, {input, output});
    });
  });
}

TEST(Executor, RefusesSchedulesThatLeaveTheirBuffers) {
  const Range whole{BufferId::kInput, 0, 8}, past{BufferId::kOutput, 4, 5},
      wrapped{BufferId::kScratch, INT64_MAX, 2};
  EXPECT_EQ(executing({.kind = OpKind::kCopy, .source = whole, .target = {BufferId::kOutput, 0, 8}}),
            "nothing");
  EXPECT_SAYS(executing({.kind = OpKind::kCopy, .source = whole, .target = past}),
              "touches bytes 4 + 5 of a buffer of 8");
  EXPECT_SAYS(executing({.kind = OpKind::kSend, .peer = 0, .source = wrapped}), "of a buffer of 4");
  EXPECT_SAYS(executing({.kind = OpKind::kReceive, .peer = 0, .target = whole}), "writes to the input");
  EXPECT_SAYS(executing({.kind = OpKind::kReceive, .peer = 1}), "names peer 1; the group has 1 ranks");
  EXPECT_SAYS(executing({.kind = OpKind::kReceive, .peer = 0, .slot = 64}), "slot 64, not in 0..63");
  EXPECT_SAYS(executing({.kind = OpKind::kNotify, .after = {0}}), "depends on 0, which is not before it");
  EXPECT_SAYS(executing({.kind = OpKind::kSum, .target = {BufferId::kOutput, 0, 8}, .parts = {{past}}}),
              "touches");
}

TEST(Executor, NotifiesInOrderOfDependenciesAndRanksMaySendToThemselves) {
  run_world(Topology::one_node(1), [](Communicator& world) {
    std::array<std::byte, 4> input{std::byte{7}}, output{};
    Schedule schedule;
    const Range in{BufferId::kInput, 0, 4}, out{BufferId::kOutput, 0, 4};
    schedule.ops.push_back({.kind = OpKind::kSend, .peer = 0, .source = in});
    schedule.ops.push_back({.kind = OpKind::kReceive, .peer = 0, .target = out});
    schedule.ops.push_back({.kind = OpKind::kNotify, .target = out, .after = {1}});
    int notices = 0;
    execute(world, "notice", schedule, {input, output}, [&](const Op& op) {
      ++notices;
      EXPECT_EQ(op.target.bytes, 4);
      EXPECT_EQ(output[0], std::byte{7});
    });
    EXPECT_EQ(notices, 1);
  });
}

TEST(TopologyOf, ACounterpartSitsAtTheSamePlaceOfAnotherNode) {
  const Topology topology = Topology::from_nodes({0, 1, 0, 0, 1});  // 0 2 3 and 1 4
  EXPECT_EQ(topology.counterpart(0, 1), 1);
  EXPECT_EQ(topology.counterpart(2, 1), 4);
  EXPECT_EQ(topology.counterpart(3, 1), 1);  // there are two only
  EXPECT_EQ(topology.counterpart(4, 0), 2);
  EXPECT_EQ(topology.counterpart(3, 0), 3);
}

TEST(TopologyOf, SubsetsKeepTheOrderOfNodes) {
  const Topology topology = Topology::from_nodes({2, 0, 1, 0, 2});
  EXPECT_EQ(topology.num_nodes(), 3);
  const Topology subset = topology.subset(std::vector<int>{0, 1, 4});
  EXPECT_EQ(subset.num_nodes(), 2);
  EXPECT_EQ(subset.node_of(0), 1);
  EXPECT_EQ(subset.node_of(1), 0);
  EXPECT_EQ(std::vector<int>(subset.ranks_of(1).begin(), subset.ranks_of(1).end()), (std::vector<int>{0, 2}));
  EXPECT_SAYS(thrown_by([] { Topology::from_nodes({0, 2, 2}); }), "node 1 of 3 holds no rank");
  EXPECT_SAYS(thrown_by([] { Topology::from_nodes({0, -1}); }), "rank 1 is on node -1");
  EXPECT_SAYS(thrown_by([] { Topology::from_nodes({0, 1 << 30}); }), "cannot fill nodes");
  EXPECT_SAYS(thrown_by([&] { topology.subset(std::vector<int>{5}); }), "rank 5 is not in 0..4");
  EXPECT_EQ(Topology::uniform(5, 2).num_nodes(), 3);
}

}  // namespace
}  // namespace moesaic
