// The routes as schedules: that no timing of the messages hangs them or changes a byte, and how many messages
// cross between nodes.
#include <gtest/gtest.h>

#include <cstring>

#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/node_rows.h"
#include "moesaic/exchange/rows.h"
#include "tests/comm/simulated_ranks.h"
#include "tests/comm/worlds.h"
#include "tests/exchange/all_ranks.h"
#include "tests/exchange/oracle.h"

namespace moesaic::exchange_checks {
namespace {

using Bytes = SimulatedRanks::Bytes;

std::vector<Topology> some_topologies() {
  std::vector<Topology> topologies;
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{{0},
                                                                     {0, 0, 0},
                                                                     {0, 1},
                                                                     {0, 1, 1},
                                                                     {0, 0, 0, 1, 1},
                                                                     {0, 1, 0, 1},
                                                                     {0, 0, 1, 1, 2, 2},
                                                                     {1, 0, 1, 1, 2, 1, 0}}) {
    topologies.push_back(Topology::from_nodes(nodes));
  }
  return topologies;
}

// A move of rows, out or back, of all ranks.
struct Move {
  std::vector<BlockSchedule> plans;
  std::vector<Schedule> schedules;
  std::vector<Bytes> inputs, outputs, stagings;
};

Bytes bytes_of(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void add(Move& move, BlockSchedule plan, Bytes input, std::int64_t output_bytes) {
  move.schedules.push_back(plan.schedule);
  move.stagings.emplace_back(static_cast<std::size_t>(plan.staging_bytes));
  move.plans.push_back(std::move(plan));
  move.inputs.push_back(std::move(input));
  move.outputs.emplace_back(static_cast<std::size_t>(output_bytes));
}

class Rows {
 public:
  Rows(const Case& c, const Topology& topology, Route route)
      : case_(c), topology_(topology), route_(route), all_(c, topology, route), row_bytes_(4 * c.width) {}

  // Rows arrive where the oracle has them, but for own ones, which never travel.
  void go(std::uint64_t seed) {
    Move move;
    for (int rank = 0; rank < topology_.world_size(); ++rank) {
      const Steps steps = route_ == Route::kRailDedup ? rail_dedup_steps(topology_, rank)
                                                      : steps_of_ranks(route_, topology_, rank);
      const Places from = places_at_source(route_, topology_, rank, all_.counts, row_bytes_);
      const Places to = places_by_rank(scaled(all_.received_rows(rank), row_bytes_));
      add(move,
          block_schedule(topology_, rank, steps, bytes_of_rows(all_.counts, row_bytes_, size(), false),
                         from.begin, to.begin),
          packed(rank, from), to.bytes);
    }
    run(move, seed,
        [&](const NodeWork& work, const BlockMemory& memory,
            const std::vector<DispatchHandle::Forwarded>& forwarded) {
          spread_rows(work, memory, forwarded, row_bytes_);
        });
    for (int rank = 0; rank < topology_.world_size(); ++rank) {
      std::vector<float> expected;
      for (const auto& row : received_rows(case_, all_.placement, rank, size())) {
        for (std::int64_t d = 0; d < case_.width; ++d) {
          expected.push_back(row.source == rank ? 0.0f : value(row.source, row.token, d));
        }
      }
      EXPECT_EQ(move.outputs[static_cast<std::size_t>(rank)], bytes_of(expected)) << "rank " << rank;
    }
  }

  // What comes home, with no word on what is right.
  std::vector<Bytes> come_back(std::uint64_t seed) {
    Move move;
    for (int rank = 0; rank < topology_.world_size(); ++rank) {
      const Steps steps = route_ == Route::kRailDedup ? rail_dedup_steps_back(topology_, rank)
                                                      : steps_of_ranks(route_, topology_, rank);
      const Places from = places_by_rank(scaled(all_.received_rows(rank), row_bytes_));
      const Places to = places_at_source(route_, topology_, rank, all_.counts, row_bytes_);
      std::vector<float> z;
      for (std::int64_t i = 0; i < from.bytes / 4; ++i) z.push_back(value(rank, i, 0));
      add(move,
          block_schedule(topology_, rank, steps, bytes_of_rows(all_.counts, row_bytes_, size(), true),
                         from.begin, to.begin),
          bytes_of(z), to.bytes);
    }
    run(move, seed,
        [&](const NodeWork& work, const BlockMemory& memory,
            const std::vector<DispatchHandle::Forwarded>& forwarded) {
          sum_rows_of_node(work, memory, forwarded, DType::kF32, case_.width);
        });
    return move.outputs;
  }

 private:
  int size() const { return topology_.world_size(); }
  static float value(int rank, std::int64_t token, std::int64_t d) {
    return static_cast<float>(rank * 10'000 + token * 100 + d + 1) / 7;
  }

  template <typename Work>
  void run(Move& move, std::uint64_t seed, Work work) {
    SimulatedRanks(move.schedules, move.inputs, move.outputs, seed, &move.stagings,
                   [&](std::size_t rank, const Op& op) {
                     work(move.plans[rank].work_for(op.peer),
                          {move.inputs[rank], move.outputs[rank], move.stagings[rank]}, all_.forwarded[rank]);
                   })
        .run();
  }

  Bytes packed(int rank, const Places& places) const {
    std::vector<float> values(static_cast<std::size_t>(places.bytes) / 4);
    const auto put = [&](std::int64_t begin, std::span<const std::int64_t> tokens) {
      auto at = static_cast<std::size_t>(begin) / 4;
      for (const std::int64_t t : tokens) {
        for (std::int64_t d = 0; d < case_.width; ++d) values[at++] = value(rank, t, d);
      }
    };
    const auto& sender = all_.senders[static_cast<std::size_t>(rank)];
    const auto& nodes = all_.nodes[static_cast<std::size_t>(rank)];
    const bool once = route_ == Route::kRailDedup;
    for (int r = 0; r < size(); ++r) {
      if (r == rank || (once && topology_.node_of(r) != topology_.node_of(rank))) continue;
      const auto at = static_cast<std::size_t>(r);
      put(places.begin.of_ranks[at], std::span(sender.token)
                                         .subspan(static_cast<std::size_t>(first_of_part(sender.rows, r)),
                                                  static_cast<std::size_t>(sender.rows[at])));
    }
    for (int node = 0; once && node < topology_.num_nodes(); ++node) {
      const auto at = static_cast<std::size_t>(node);
      put(places.begin.of_nodes[at], std::span(nodes.token)
                                         .subspan(static_cast<std::size_t>(first_of_part(nodes.rows, node)),
                                                  static_cast<std::size_t>(nodes.rows[at])));
    }
    return bytes_of(values);
  }

  Case case_;
  Topology topology_;
  Route route_;
  AllRanks all_;
  std::int64_t row_bytes_;
};

TEST(RouteSchedules, AreCompleteWhateverMessageIsFirst) {
  for (const Topology& topology : some_topologies()) {
    for (const Route route : kRoutes) {
      SCOPED_TRACE(fmt::format("{} on {}", name_of(route), describe(topology)));
      Rows rows({"random", 13, 3}, topology, route);
      const auto home = rows.come_back(0);
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        rows.go(seed);
        EXPECT_TRUE(rows.come_back(seed) == home) << "seed " << seed;
      }
    }
  }
}

TEST(RouteSchedules, MoreMessagesThanSlotsBetweenTwoRanksFollowEachOther) {
  std::vector<int> nodes(135, 0);
  nodes.insert(nodes.end(), {1, 1});
  for (const Route route : kRoutes) {
    SCOPED_TRACE(name_of(route));
    Rows rows({"lopsided", 140, 6, Selection::kRandom, Tokens::kUneven, false, false, 1},
              Topology::from_nodes(nodes), route);
    rows.go(1);
    EXPECT_TRUE(rows.come_back(1) == rows.come_back(2));
  }
}

TEST(RouteSchedules, CrossInAsManyMessagesAsTheRouteSays) {
  const Topology topology = Topology::uniform(16, 4);  // four nodes of four
  const auto crossing = [&](const Steps& steps) {
    std::int64_t count = 0;
    for (const Step& step : steps) count += topology.node_of(step.from) != topology.node_of(step.to);
    return count;
  };
  EXPECT_EQ(crossing(flat_steps(topology)), 16 * 12);
  EXPECT_EQ(crossing(rail_steps(topology)), 16 * 3);
  EXPECT_EQ(crossing(leader_steps(topology)), 4 * 3);
  EXPECT_EQ(crossing(rail_dedup_steps(topology)), 16 * 3);
  EXPECT_EQ(crossing(rail_dedup_steps_back(topology)), 16 * 3);
}

TEST(RouteSchedules, AStepThatNeedsABlockThatIsNotThereIsRefused) {
  const Topology topology = Topology::uniform(2, 1);
  const Steps steps{{.from = 0, .to = 1, .blocks = {{.from = 1, .to = 0}}}};
  const BlockBytes bytes{.of_ranks = {0, 8, 8, 0}, .of_nodes = {}};
  EXPECT_THROW(block_schedule(topology, 0, steps, bytes, {.of_ranks = {0, 0}, .of_nodes = {}}, {}),
               InvalidArgument);
}

}  // namespace
}  // namespace moesaic::exchange_checks
