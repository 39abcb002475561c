// What routes are said to cost against what their schedules send, and which is chosen.
#include "moesaic/exchange/route_price.h"

#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "tests/comm/worlds.h"
#include "tests/exchange/all_ranks.h"
#include "tests/exchange/crossing_bytes.h"

namespace moesaic::exchange_checks {
namespace {

// The layers that matter: 64 experts, eight for each token, 512 bf16 numbers a row.
const Case kTopEight{"top 8", 64, 8, Selection::kRandom, Tokens::kUneven, false, false, 512};
const Case kTopOne{"top 1", 64, 1, Selection::kRandom, Tokens::kUneven, false, false, 512};
constexpr std::int64_t kRowBytes = 1024;

struct Sent {
  std::int64_t card_bytes = 0, all_bytes = 0, messages = 0;  // between nodes
  bool operator==(const Sent&) const = default;
};

// By the schedules of all ranks.
Sent sent(const Topology& topology, const AllRanks& all, Route route, bool back) {
  const bool once = route == Route::kRailDedup;
  const int size = topology.world_size();
  std::vector<std::int64_t> out(static_cast<std::size_t>(topology.num_nodes()), 0), in = out;
  Sent result;
  for (int rank = 0; rank < size; ++rank) {
    const Steps steps = !once  ? steps_of_ranks(route, topology, rank)
                        : back ? rail_dedup_steps_back(topology, rank)
                               : rail_dedup_steps(topology, rank);
    const BlockPlaces source = places_at_source(route, topology, rank, all.counts, kRowBytes).begin;
    const BlockPlaces owner = places_by_rank(scaled(all.received_rows(rank), kRowBytes)).begin;
    const auto plan = block_schedule(topology, rank, steps, bytes_of_rows(all.counts, kRowBytes, size, back),
                                     back ? owner : source, back ? source : owner);
    for (const Op& op : plan.schedule.ops) {
      const auto from = static_cast<std::size_t>(topology.node_of(rank));
      if (op.kind != OpKind::kSend || topology.node_of(op.peer) == topology.node_of(rank)) continue;
      out[from] += op.source.bytes;
      in[static_cast<std::size_t>(topology.node_of(op.peer))] += op.source.bytes;
      result.all_bytes += op.source.bytes;
      ++result.messages;
    }
  }
  for (std::size_t node = 0; node < out.size(); ++node) {
    result.card_bytes = std::max({result.card_bytes, out[node], in[node]});
  }
  return result;
}

std::vector<Topology> some_topologies() {
  return {Topology::uniform(8, 2), Topology::uniform(8, 4), Topology::from_nodes({0, 0, 0, 1, 1}),
          Topology::from_nodes({0, 1, 1, 2})};
}

TEST(RoutePrice, LoadsAreThoseOfTheSchedules) {
  for (const Topology& topology : some_topologies()) {
    for (const Route route : kRoutes) {
      SCOPED_TRACE(fmt::format("{} on {}", name_of(route), describe(topology)));
      const AllRanks all(kTopEight, topology, route);
      for (const bool back : {false, true}) {
        const Steps steps = route != Route::kRailDedup ? steps_of_ranks(route, topology)
                            : back                     ? rail_dedup_steps_back(topology)
                                                       : rail_dedup_steps(topology);
        PhaseLoads loads(topology);
        PricedSteps(topology, steps)
            .add_loads(loads, bytes_of_rows(all.counts, kRowBytes, topology.world_size(), back), 0);
        EXPECT_EQ(loads.card_bytes(), sent(topology, all, route, back).card_bytes);
      }
    }
  }
}

// Sums may be wider than rows.
TEST(RoutePrice, CountsRowsAndSumsEachWithTheirOwnBytes) {
  constexpr std::int64_t kLarge =
      1000 * kRowBytes;  // so the busiest card is that of rows, or of sums, not of lists
  for (const Topology& topology : some_topologies()) {
    for (const Route route : kRoutes) {
      SCOPED_TRACE(fmt::format("{} on {}", name_of(route), describe(topology)));
      const AllRanks all(kTopEight, topology, route);
      const RoutePrices prices(topology);
      const auto card_bytes = [&](std::int64_t row, std::int64_t sum) {
        return prices.loads(route, all.counts, row, sum).card_bytes();
      };
      const std::int64_t rows = card_bytes(2 * kLarge, 0) - card_bytes(kLarge, 0),
                         sums = card_bytes(0, 2 * kLarge) - card_bytes(0, kLarge);
      EXPECT_EQ(rows, 1000 * sent(topology, all, route, false).card_bytes);
      EXPECT_EQ(sums, 1000 * sent(topology, all, route, true).card_bytes);
    }
  }
}

// A token goes once to each other node that has one of its experts, and one sum comes back.
TEST(RoutePrice, RailDedupCrossesWithWhatRoutingRequires) {
  for (const Topology& topology : some_topologies()) {
    SCOPED_TRACE(describe(topology));
    const AllRanks all(kTopEight, topology, Route::kRailDedup);
    std::int64_t required = 0;
    for (int rank = 0; rank < topology.world_size(); ++rank) {
      for (int node = 0; node < topology.num_nodes(); ++node) {
        if (node == topology.node_of(rank)) continue;
        required += kRowBytes * tokens_at(kTopEight, all.placement, topology, rank, node).distinct;
      }
    }
    EXPECT_GT(required, 0);
    EXPECT_EQ(sent(topology, all, Route::kRailDedup, false).all_bytes, required);
    EXPECT_EQ(sent(topology, all, Route::kRailDedup, true).all_bytes, required);
    EXPECT_GT(sent(topology, all, Route::kFlat, false).all_bytes, required);
  }
}

Calibration links(Link inside, Link between) {
  Calibration calibration;
  calibration.inside = inside;
  calibration.between = between;
  calibration.copy = {8e9, 4e9};
  return calibration;
}

Route chosen(const Case& c, const Topology& topology, const std::optional<Calibration>& calibration,
             std::int64_t bytes_per_sum = kRowBytes) {
  return RoutePrices(topology, calibration)
      .cheapest(AllRanks(c, topology, Route::kFlat).counts, kRowBytes, bytes_per_sum);
}

TEST(RouteChoice, FollowsWhatCostsMost) {
  const Topology nodes = Topology::uniform(16, 4);
  const Link memory{1e-6, 1e-10};
  const Calibration slow_bytes = links(memory, {1e-6, 8e-8});      // 100 Mb/s
  const Calibration slow_messages = links(memory, {5e-3, 1e-10});  // milliseconds to each other node
  const Calibration slow_inside = links({1e-3, 1e-6}, {1e-6, 1e-10});
  EXPECT_EQ(chosen(kTopEight, nodes, slow_bytes), Route::kRailDedup);
  EXPECT_EQ(chosen(kTopEight, nodes, slow_inside), Route::kFlat);
  // Fewest messages of one rank: rail and leader send to each other node once, rail in fewer hops.
  EXPECT_NE(chosen(kTopOne, nodes, slow_messages), Route::kFlat);
  EXPECT_EQ(chosen(kTopEight, Topology::uniform(8, 8), slow_bytes), Route::kFlat);
}

// A token to one expert crosses once by any route. A route with hops saves messages alone, and they must be
// dear for it to be taken.
TEST(RouteChoice, LeavesFlatForMoreThanATenth) {
  const Topology nodes = Topology::uniform(8, 4);
  const auto saved = [&](double seconds_per_message) {
    const Calibration calibration = links({1e-7, 1e-11}, {seconds_per_message, 8e-8});
    const RoutePrices prices(nodes, calibration);
    const auto price = [&](Route route) {
      return prices.loads(route, AllRanks(kTopOne, nodes, route).counts, kRowBytes, kRowBytes)
          .seconds(calibration);
    };
    const double saving = 1 - price(Route::kRail) / price(Route::kFlat);
    EXPECT_GT(saving, 0);
    EXPECT_EQ(chosen(kTopOne, nodes, calibration) == Route::kFlat, saving < 1 - 1 / 1.1);
    return saving;
  };
  EXPECT_LT(saved(1e-6), 0.05);
  EXPECT_GT(saved(1e-2), 0.2);
}

TEST(RouteChoice, WithoutACalibrationTakesTheFewestBytesThroughTheBusiestCard) {
  EXPECT_EQ(chosen(kTopEight, Topology::uniform(16, 4), std::nullopt), Route::kRailDedup);
  // Nothing is saved where a node is one rank, and masks cost bytes.
  EXPECT_EQ(chosen(kTopEight, Topology::uniform(4, 1), std::nullopt), Route::kFlat);
  EXPECT_EQ(chosen(kTopOne, Topology::uniform(8, 2), std::nullopt), Route::kFlat);
  EXPECT_EQ(chosen(kTopEight, Topology::one_node(4), std::nullopt), Route::kFlat);
}

// Two experts a token: rail_dedup saves a few rows and sums, and sends a mask for each.
TEST(RouteChoice, SeesThatSumsAreWiderThanRows) {
  const Topology nodes = Topology::uniform(8, 4);
  const RoutePrices prices(nodes);
  const Case two{"top 2", 64, 2, Selection::kRandom, Tokens::kUneven, false, false, 512};
  const ExchangeCounts counts = AllRanks(two, nodes, Route::kFlat).counts;
  EXPECT_EQ(prices.cheapest(counts, 1, 1), Route::kFlat);
  EXPECT_EQ(prices.cheapest(counts, 1, 64), Route::kRailDedup);
}

TEST(RouteChoice, IsMadeAlikeByAllRanksAndHasFlatsBits) {
  const Topology topology = Topology::from_nodes({0, 0, 0, 1, 1});
  const RoutePrices slow_bytes(topology, links({1e-6, 1e-10}, {1e-6, 8e-8}));
  EXPECT_NO_THROW(run_world(topology, [&](Communicator& group) {
    for (const Case& c : {kTopEight, kTopOne}) {
      const auto plan = plan_of(c, group.rank(), group.size());
      const auto placement = placement_of(c, group.size());
      const auto x = payload_of(c, "x", group.rank(), group.size(), DType::kF32);
      std::vector<std::vector<float>> home;
      for (const DispatchOptions& options :
           {DispatchOptions{}, DispatchOptions{.route = std::nullopt, .prices = &slow_bytes},
            DispatchOptions{.route = std::nullopt}}) {
        Buffer rows;
        const auto handle = dispatch(group, plan, placement,
                                     {x.data(), DType::kF32, plan.num_tokens, c.width}, rows, options);
        home.emplace_back(x.size());
        combine(group, handle, {rows.data(), DType::kF32, handle.num_rows(), c.width},
                {home.back().data(), DType::kF32, plan.num_tokens, c.width});
        if (home.back() != home.front()) throw Error("other bits than flat");
      }
    }
  }));
}

}  // namespace
}  // namespace moesaic::exchange_checks
