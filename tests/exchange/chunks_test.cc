// Rows that travel in chunks and in the background.
#include "moesaic/exchange/chunks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "moesaic/core/error.h"
#include "tests/comm/held_transport.h"
#include "tests/comm/worlds.h"
#include "tests/exchange/checks.h"

namespace moesaic::exchange_checks {
namespace {

using Int64s = std::vector<std::int64_t>;

TEST(Chunks, BringTheSameBitsByEveryRouteHoweverManyThereAre) {
  for (const auto& topology : {Topology::uniform(4, 2), Topology::from_nodes({0, 1, 1})}) {
    SCOPED_TRACE(describe(topology));
    EXPECT_NO_THROW(run_world(topology, [](Communicator& group) {
      for (const Route route : kRoutes) {
        check_all_cases(group, {.route = route, .chunks = 1, .background = true});
        check_all_cases(group, {.route = route, .chunks = 2, .background = true});
        check_all_cases(group, {.route = route, .chunks = 3, .background = false});
        check_all_cases(group, {.route = route, .chunks = 50, .background = true});  // more than tokens
        check_all_cases(group, {.route = route, .chunks = 2, .background = true, .fp32_sums = true});
      }
      check_all_cases(group, {.route = std::nullopt, .chunks = 2, .background = true});
    }));
  }
}

TEST(Chunks, BringTheSameBitsByEveryRouteOnEveryShapeOfNodes) {
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{
           {0}, {0, 1}, {0, 0, 0}, {0, 0, 0, 1}, {0, 0, 1, 1, 2, 2}, {2, 0, 0, 1, 2, 2}}) {
    const Topology topology = Topology::from_nodes(nodes);
    SCOPED_TRACE(describe(topology));
    EXPECT_NO_THROW(run_world(topology, [](Communicator& group) {
      for (const Route route : kRoutes) check_all_cases(group, {route, 7, true});
    }));
  }
}

TEST(Chunks, OfTwoTripsUnderWayAtOnceDoNotMeet) {
  EXPECT_NO_THROW(run_world(Topology::uniform(4, 2), [](Communicator& group) {
    Trip first(group, cases()[1], DType::kF32, {Route::kRailDedup, 3, true});
    Trip second(group, cases()[5], DType::kBF16, {Route::kLeader, 2, true});
    first.go();
    second.go();
    second.come_back("x", scale_by_id, DType::kBF16);
    first.come_back("x", scale_by_id, DType::kF32);
    second.return_values();
    first.return_values();
  }));
}

// Each token goes to each rank, which has one expert.
RoutingPlan for_all_ranks(int ranks, std::int64_t num_tokens) {
  RoutingPlan plan;
  plan.num_tokens = num_tokens;
  plan.num_choices = plan.num_experts = ranks;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (int e = 0; e < ranks; ++e) {
      plan.expert_ids.push_back(e);
      plan.weights.push_back(1.0f);
    }
  }
  return plan;
}

TEST(Chunks, ThoseThatAreInCanBeWorkedOnAndSentHomeWhileTheLastIsStillOnItsWay) {
  for (const Route route : kRoutes) {
    SCOPED_TRACE(name_of(route));
    std::atomic<int> worked_before_the_last = 0;
    EXPECT_NO_THROW(run_inproc(2, [&](Transport& transport) {
      // 7 tokens in 3 chunks: 2, 2 and 3, so the last is known by its size.
      constexpr std::int64_t kWidth = 5, kTokens = 7;
      const auto is_last = [](int, std::size_t bytes) { return bytes == 3 * kWidth * sizeof(float); };
      HeldTransport held(transport, is_last);
      Communicator group(held, Topology::uniform(2, 1), kTestTimeout);
      const auto placement = Placement::contiguous(2, 2);
      const auto plan = for_all_ranks(2, kTokens);
      const std::vector<float> x(kTokens * kWidth, 1.0f + static_cast<float>(group.rank()));
      const Buffer tokens = packed(x, DType::kF32);
      const auto handle =
          plan_dispatch(group, plan, placement, kWidth * sizeof(float), {.route = route, .chunks = 3});
      Buffer rows, y = poisoned(kTokens * kWidth, DType::kF32);
      MovingRows moving =
          start_rows(group, handle, {tokens.data(), DType::kF32, kTokens, kWidth}, rows, true);
      MovingSums sums(group, handle, true);
      for (std::size_t c = 0; c < 3; ++c) {
        const auto& chunk = handle.chunks[c];
        if (c == 2) held.release();
        moving.wait(c);
        if (!held.released()) ++worked_before_the_last;
        const std::byte* there = rows.data() + chunk.first_row * kWidth * std::int64_t{sizeof(float)};
        sums.start({there, DType::kF32, chunk.num_rows, kWidth});
      }
      sums.finish({y.data(), DType::kF32, kTokens, kWidth});
      std::vector<float> twice = x;
      for (float& value : twice) value *= 2;
      expect_same_bits("y", unpacked(y, DType::kF32), twice);
    }));
    EXPECT_EQ(worked_before_the_last, 2 * 2);
  }
}

// ---- losses ----

// Four ranks on two nodes move six rows each, in three chunks. before_sums(group, c): between the arrival of
// chunk c at its experts and its way home; lost(error): what a rank is told that loses a peer.
void lose_a_rank(Route route, std::chrono::milliseconds timeout,
                 const std::function<void(Communicator&, std::size_t)>& before_sums,
                 const std::function<void(const PeerLost&)>& lost) {
  constexpr std::int64_t kTokens = 6, kWidth = 3, kRowBytes = kWidth * std::int64_t{sizeof(float)};
  constexpr int kChunks = 3;
  run_world(
      Topology::uniform(4, 2),
      [&](Communicator& group) {
        const auto plan = for_all_ranks(4, kTokens);
        const Buffer x = packed(std::vector<float>(kTokens * kWidth, 1.0f), DType::kF32);
        Buffer rows, y(kTokens * kRowBytes);
        const auto handle = plan_dispatch(group, plan, Placement::contiguous(4, 4, 4), kRowBytes,
                                          {.route = route, .chunks = kChunks});
        MovingRows moving = start_rows(group, handle, {x.data(), DType::kF32, kTokens, kWidth}, rows, true);
        MovingSums sums(group, handle, true);
        try {
          for (std::size_t c = 0; c < kChunks; ++c) {
            moving.wait(c);
            before_sums(group, c);
            const auto& chunk = handle.chunks[c];
            sums.start({rows.data() + chunk.first_row * kRowBytes, DType::kF32, chunk.num_rows, kWidth});
          }
          sums.finish({y.data(), DType::kF32, kTokens, kWidth});
        } catch (const PeerLost& error) {
          lost(error);
          throw;
        }
      },
      timeout);
}

TEST(Chunks, WhenARankThrowsBetweenTwoChunksTheOthersLosePeersAndNobodyHangs) {
  for (const Route route : kRoutes) {
    SCOPED_TRACE(name_of(route));
    std::atomic<int> lost = 0;
    const auto throw_on_rank_1 = [](Communicator& group, std::size_t c) {
      if (group.rank() == 1 && c == 1) throw NonFinite("an expert gave nan");
    };
    const auto count_rank_1 = [&](const PeerLost& error) { lost += error.rank() == 1; };
    EXPECT_THROW(lose_a_rank(route, kTestTimeout, throw_on_rank_1, count_rank_1), NonFinite);
    EXPECT_EQ(lost, 3);
  }
}

TEST(Chunks, WhenARankFallsSilentBetweenTwoChunksTheOthersLosePeersWithinTheTimeout) {
  for (const Route route : kRoutes) {
    SCOPED_TRACE(name_of(route));
    std::atomic<int> lost = 0;
    const auto start = Clock::now();
    const auto rank_2_waits = [&](Communicator& group, std::size_t) {
      while (group.rank() == 2 && lost < 3 && Clock::now() - start < kTestTimeout) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    EXPECT_THROW(
        lose_a_rank(route, std::chrono::milliseconds(300), rank_2_waits, [&](const PeerLost&) { ++lost; }),
        PeerLost);
    EXPECT_GE(lost, 3);
  }
}

// ---- counts and choice ----

TEST(ChunkCounts, ThatDoNotAddUpNameThePeer) {
  // Rank 2 alone on its node; the others share one. It announced 5 and 4 rows, 6 tokens in all.
  const auto topology = Topology::from_nodes({0, 0, 1});
  RowCounts whole{.rows = Int64s(9, 0), .node_rows = Int64s(6, 0)};
  whole.rows[6] = 5, whole.rows[7] = 4, whole.rows[8] = 1;
  whole.node_rows[4] = 6;
  const Int64s good{3, 1, 1, 3, 0, 2, 3, 0, 3, 0};
  const auto complaint = [&](const Int64s& told) {
    try {
      check_chunk_counts(told, whole, topology, 2, 6);
    } catch (const CorruptData& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto says = [&](std::size_t at, std::int64_t value) {
    Int64s told = good;
    told[at] = value;
    return complaint(told);
  };
  EXPECT_EQ(complaint(good), "");
  EXPECT_NE(says(0, 6).find("rank 6 announces 6 rows in a chunk where 5 are left"), std::string::npos);
  EXPECT_NE(says(0, -1).find("announces -1 rows"), std::string::npos);
  EXPECT_NE(says(5, 1).find("chunks of 4 rows in all, expected 5"), std::string::npos);
  EXPECT_NE(says(9, 1).find("announces 1 rows in a chunk where 0 are left"), std::string::npos);
  // 2 tokens for the node where rank 0 alone gets 3 rows.
  EXPECT_NE(complaint({3, 1, 1, 2, 0, 2, 3, 0, 4, 0}).find("announces 2 tokens for node 0"),
            std::string::npos);
}

TEST(ChunkCounts, ThatDisagreeBetweenRanksAreFoundByAll) {
  std::vector<std::string> messages(2);
  run_world(Topology::one_node(2), [&](Communicator& group) {
    const Buffer x = packed(std::vector<float>(6, 1.0f), DType::kF32);
    Buffer rows;
    try {
      dispatch(group, for_all_ranks(2, 2), Placement::contiguous(2, 2), {x.data(), DType::kF32, 2, 3}, rows,
               {.chunks = group.rank() + 1});
    } catch (const CorruptData& e) {
      messages[static_cast<std::size_t>(group.rank())] = e.what();
    }
  });
  EXPECT_NE(messages[0].find("rank 1 asks for 2 chunks, expected 1"), std::string::npos) << messages[0];
  EXPECT_NE(messages[1].find("rank 0 asks for 1 chunks, expected 2"), std::string::npos) << messages[1];
}

TEST(ChunkCounts, OutOfRangeAreRefused) {
  for (const std::int64_t chunks : {std::int64_t{0}, kMostChunks + 1}) {
    EXPECT_THROW(run_world(Topology::one_node(1),
                           [&](Communicator& group) {
                             plan_dispatch(group, for_all_ranks(1, 2), Placement::contiguous(1, 1), 4,
                                           {.chunks = chunks});
                           }),
                 InvalidArgument);
  }
}

// 2 ranks, 2 experts each; every rank sends `rows` to the other, two slots each.
std::int64_t chosen(const Topology& topology, std::int64_t rows, std::optional<std::int64_t> asked = {},
                    std::int64_t uncut = std::numeric_limits<std::int64_t>::max()) {
  ExchangeCounts counts;
  counts.rows = {0, rows, rows, 0};
  counts.slots = {0, 2 * rows, 2 * rows, 0};
  counts.uncut_slots = {std::numeric_limits<std::int64_t>::max(), uncut};
  return choose_chunks(topology, Placement::contiguous(4, 2, 2), counts, 8192, asked);
}

TEST(ChunkChoice, TakesOneForLittleAndFourForMuch) {
  const auto apart = Topology::uniform(2, 1);
  EXPECT_EQ(chosen(apart, 0), 1);
  EXPECT_EQ(chosen(apart, 127), 1);
  EXPECT_EQ(chosen(apart, 128), 2);  // 1 MiB, 128 slots an expert
  EXPECT_EQ(chosen(apart, 192), 3);
  EXPECT_EQ(chosen(apart, 100'000), 4);
}

TEST(ChunkChoice, TakesOneWhereNothingCrossesNodes) { EXPECT_EQ(chosen(Topology::one_node(2), 100'000), 1); }

TEST(ChunkChoice, DoesAsItIsAskedButForWorkInOnePiece) {
  const auto apart = Topology::uniform(2, 1);
  EXPECT_EQ(chosen(apart, 10, 7), 7);
  EXPECT_EQ(chosen(Topology::one_node(2), 10, 7), 7);
  EXPECT_EQ(chosen(apart, 10, 7, 21), 7);
  EXPECT_EQ(chosen(apart, 10, 7, 20), 1);
  EXPECT_EQ(chosen(apart, 100'000, {}, 20), 1);
}

}  // namespace
}  // namespace moesaic::exchange_checks
