#include <gtest/gtest.h>

#include <set>

#include "tests/comm/worlds.h"
#include "tests/exchange/checks.h"

namespace moesaic::exchange_checks {
namespace {

TEST(Exchange, EqualsTheFormulaBitForBitOnEveryWorldRouteAndCase) { for_each_world(check_all_routes); }

TEST(Exchange, TwoForwardsBeforeOneBackwardKeepTheirOwnHandles) { for_each_world(check_two_in_flight); }

TEST(Exchange, CasesCoverWhatTheyClaim) {
  // On three ranks: dropped choices, weights of 0 that are not absent, tokens with several experts on one
  // rank.
  bool dropped = false, zero_weight = false, several = false, no_expert = false;
  for (const Case& c : cases()) {
    const auto placement = placement_of(c, 3);
    for (int rank = 0; rank < 3; ++rank) {
      const auto plan = plan_of(c, rank, 3);
      for (std::size_t i = 0; i < plan.expert_ids.size(); ++i) {
        dropped |= plan.expert_ids[i] < 0;
        zero_weight |= plan.expert_ids[i] >= 0 && plan.weights[i] == 0.0f;
      }
      for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
        bool any = false;
        for (int owner = 0; owner < 3; ++owner) {
          several |= slots_at(plan, placement, t, owner).size() > 1;
          any |= !slots_at(plan, placement, t, owner).empty();
        }
        no_expert |= !any;
      }
    }
  }
  EXPECT_TRUE(dropped && zero_weight && several && no_expert);
}

TEST(Exchange, CasesTellTheWiresAndTheRoutesApart) {
  const Topology topology = Topology::uniform(4, 2);
  bool other_bits = false, other_bits_on_one_node = false;
  std::set<Route> taken;
  for (const Case& c : cases()) {
    const auto placement = placement_of(c, 4);
    for (int rank = 0; rank < 4; ++rank) {
      const auto y = [&](const Topology& nodes, DType wire) {
        return combined(plan_of(c, rank, 4), placement, nodes, payload_of(c, "x", rank, 4, DType::kBF16),
                        c.width, scale_by_id, wire, DType::kBF16);
      };
      other_bits |= y(topology, DType::kF32) != y(topology, DType::kBF16);
      const Topology one = Topology::one_node(4);
      other_bits_on_one_node |= y(one, DType::kF32) != y(one, DType::kBF16);
    }
    taken.insert(fewest_bytes(c, topology, DType::kBF16, DType::kF32));
  }
  EXPECT_TRUE(other_bits && other_bits_on_one_node);
  EXPECT_EQ(taken, (std::set{Route::kFlat, Route::kRailDedup}));  // by auto
}

TEST(Exchange, SixtyExpertsOnTwoRanksAndThirtyOnEight) {
  for (const auto& [num_experts, topology] :
       {std::pair{60, Topology::uniform(2, 1)}, std::pair{30, Topology::uniform(8, 3)}}) {
    const Case c{"uneven", num_experts, 6};
    EXPECT_NO_THROW(run_world(topology, [&](Communicator& group) {
      Trip trip(group, c, DType::kBF16);
      trip.go();
      trip.come_back("x", scale_by_id, DType::kBF16);
      trip.return_values();
    }));
  }
}

TEST(Exchange, GroupsOfOneWorldWorkSideBySide) {
  // Four ranks on two nodes, groups {0,1} and {2,3}.
  EXPECT_NO_THROW(run_world(Topology::uniform(4, 2), [&](Communicator& world) {
    const int first = world.rank() / 2 * 2;
    auto group = world.split(std::vector<int>{first, first + 1}, 1);
    check_all_routes(group);
  }));
}

TEST(Exchange, NodesOfDifferentSizesWorkOnEveryRoute) {
  for (const auto& nodes : std::vector<std::vector<int>>{{0, 1, 1},
                                                         {0, 0, 0, 1, 1},
                                                         {0, 1, 1, 1, 1},
                                                         {0, 0, 0, 0, 1},
                                                         {2, 0, 0, 1, 2, 2},
                                                         {0, 1, 2, 3},
                                                         {1, 0, 1, 1, 2, 1, 0}}) {
    const Topology topology = Topology::from_nodes(nodes);
    SCOPED_TRACE(describe(topology));
    EXPECT_NO_THROW(run_world(topology, check_all_routes));
  }
}

// Masks of more than a byte, and more messages between two ranks than a schedule has slots.
TEST(Exchange, ALargeNodeBesideASmallOneWorksOnEveryRoute) {
  std::vector<int> nodes(71, 0);
  nodes.insert(nodes.end(), {1, 1});
  const Case c{"lopsided", 150, 20, Selection::kRandom, Tokens::kUneven, false, false, 2};
  for (const Route route : kRoutes) {
    EXPECT_NO_THROW(run_world(Topology::from_nodes(nodes), [&](Communicator& group) {
      Trip trip(group, c, DType::kBF16, {.route = route});
      trip.go();
      trip.come_back("x", scale_by_id, DType::kBF16);
      trip.return_values();
    }));
  }
}

TEST(Exchange, AGroupOfOneSendsNothing) {
  EXPECT_NO_THROW(run_world(Topology::one_node(3), [&](Communicator& world) {
    auto alone = world.split(std::vector<int>{world.rank()}, 1);
    check_all_routes(alone);
    expect_equal("messages", alone.traffic().messages, std::int64_t{0});
  }));
}

TEST(Exchange, OneOwnerReturnsItsRowExactlyNegativeZeroIncluded) {
  EXPECT_NO_THROW(run_world(Topology::uniform(2, 1), [&](Communicator& group) {
    const auto placement = Placement::contiguous(2, 2);
    const RoutingPlan plan{.num_tokens = 2,
                           .num_choices = 1,
                           .num_experts = 2,
                           .expert_ids = {0, 1},
                           .weights = {1.0f, 1.0f},
                           .kept = {1, 1}};
    const std::vector<float> x{-0.0f, 1.5f, -2.25f, -0.0f};
    const Buffer sent = packed(x, DType::kF32);
    Buffer rows, y = poisoned(4, DType::kF32);
    const auto handle = dispatch(group, plan, placement, {sent.data(), DType::kF32, 2, 2}, rows);
    combine(group, handle, {rows.data(), DType::kF32, handle.num_rows(), 2}, {y.data(), DType::kF32, 2, 2});
    expect_same_bits("y", unpacked(y, DType::kF32), x);
  }));
}

}  // namespace
}  // namespace moesaic::exchange_checks
