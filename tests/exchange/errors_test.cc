#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "moesaic/core/error.h"
#include "tests/comm/worlds.h"
#include "tests/exchange/checks.h"

namespace moesaic::exchange_checks {
namespace {

constexpr std::int64_t kWidth = 3;

RoutingPlan good_plan() {
  return {.num_tokens = 2,
          .num_choices = 2,
          .num_experts = 4,
          .expert_ids = {0, 3, 2, -1},
          .weights = {0.5f, 0.5f, 1.0f, 0.0f},
          .kept = {1, 0, 1, 1}};
}

// The message of the InvalidArgument that dispatch throws on both of two ranks, after which nothing has been
// sent.
template <typename Change>
std::string refusal(Change change, std::int64_t num_rows = 2, int num_experts = 4) {
  std::string message;
  std::mutex mutex;
  run_world(Topology::one_node(2), [&](Communicator& group) {
    auto plan = good_plan();
    change(plan);
    const Buffer x =
        packed(std::vector<float>(static_cast<std::size_t>(num_rows * kWidth), 1.0f), DType::kF32);
    Buffer rows;
    try {
      dispatch(group, plan, Placement::contiguous(num_experts, 2), {x.data(), DType::kF32, num_rows, kWidth},
               rows);
    } catch (const InvalidArgument& e) {
      expect_equal("messages sent", group.traffic().messages, std::int64_t{0});
      const std::lock_guard lock(mutex);
      message = e.what();
    }
  });
  return message;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' does not say '" << part << "'";
}

TEST(ExchangeErrors, BadPlansAreRefusedBeforeAnythingIsSent) {
  EXPECT_EQ(refusal([](auto&) {}), "");
  expect_contains(refusal([](auto& p) { p.expert_ids = {0, 3, 2, 2}; }), "token 1 chose expert 2 twice");
  expect_contains(refusal([](auto& p) { p.expert_ids[1] = 4; }), "token 0 chose expert 4, expected -1..3");
  expect_contains(refusal([](auto& p) { p.expert_ids[1] = -2; }), "token 0 chose expert -2");
  expect_contains(refusal([](auto& p) { p.weights[2] = NAN; }), "token 1 gives expert 2 the weight nan");
  expect_contains(refusal([](auto& p) { p.weights[0] = INFINITY; }), "weight inf");
  expect_contains(refusal([](auto& p) { p.weights.pop_back(); }), "3 weights, expected 4");
  expect_contains(refusal([](auto& p) { p.expert_ids.pop_back(); }), "3 expert ids");
  expect_contains(refusal([](auto&) {}, 3), "a plan of 2 tokens, but x has 3");
  expect_contains(refusal([](auto&) {}, 2, 5), "a plan of 4 experts, a placement of 5");
}

TEST(ExchangeErrors, ShapesAndDtypesThatDoNotFitTheHandleAreRefused) {
  EXPECT_NO_THROW(run_world(Topology::one_node(1), [&](Communicator& group) {
    const auto plan = good_plan();
    const Buffer x = packed(std::vector<float>(6, 1.0f), DType::kF32);
    Buffer rows, y(64);
    EXPECT_THROW(dispatch(group, plan, Placement::contiguous(4, 2), {x.data(), DType::kF32, 2, 3}, rows),
                 InvalidArgument);
    EXPECT_THROW(dispatch(group, plan, Placement::contiguous(4, 1), {nullptr, DType::kF32, 2, 3}, rows),
                 InvalidArgument);
    EXPECT_THROW(dispatch(group, plan, Placement::contiguous(4, 1), {x.data(), DType::kF32, 2, 0}, rows),
                 InvalidArgument);
    const auto handle =
        dispatch(group, plan, Placement::contiguous(4, 1), {x.data(), DType::kF32, 2, 3}, rows);
    const auto combining = [&](ConstRows z, Rows to) { combine(group, handle, z, to); };
    EXPECT_THROW(combining({x.data(), DType::kF32, 1, 3}, {y.data(), DType::kF32, 2, 3}), InvalidArgument);
    EXPECT_THROW(combining({x.data(), DType::kF32, 2, 3}, {y.data(), DType::kF32, 3, 3}), InvalidArgument);
    EXPECT_THROW(combining({x.data(), DType::kF32, 2, 3}, {y.data(), DType::kF32, 2, 2}), InvalidArgument);
    EXPECT_THROW(combining({x.data(), DType::kI32, 2, 3}, {y.data(), DType::kF32, 2, 3}), InvalidArgument);
    EXPECT_NO_THROW(combining({x.data(), DType::kF32, 2, 3}, {y.data(), DType::kF32, 2, 3}));
    EXPECT_THROW(dispatch_again(group, handle, {x.data(), DType::kF32, 1, 3}, rows), InvalidArgument);
    std::vector<float> values(3), home(4);
    EXPECT_THROW(return_slot_values(group, handle, std::span(values).first(2), home), InvalidArgument);
    EXPECT_THROW(return_slot_values(group, handle, values, std::span(home).first(3)), InvalidArgument);
    EXPECT_THROW(
        combine(group, DispatchHandle(), {x.data(), DType::kF32, 0, 3}, {y.data(), DType::kF32, 0, 3}),
        InvalidArgument);
  }));
}

// The CorruptData message of every rank of three when rank 1 differs from the others.
template <typename Body>
std::vector<std::string> corruption(Body body) {
  std::vector<std::string> messages(3);
  run_world(Topology::one_node(3), [&](Communicator& group) {
    try {
      body(group, group.rank() == 1);
    } catch (const CorruptData& e) {
      messages[static_cast<std::size_t>(group.rank())] = e.what();
    }
  });
  return messages;
}

TEST(ExchangeErrors, TablesThatDisagreeAreFoundByAllAndThePeerIsNamed) {
  const auto messages = corruption([](Communicator& group, bool odd) {
    const auto placement =
        Placement::from_table(odd ? std::vector{0, 1, 2, 1} : std::vector{0, 1, 2, 0}, 3, 3);
    const Buffer x = packed(std::vector<float>(6, 1.0f), DType::kF32);
    Buffer rows;
    dispatch(group, good_plan(), placement, {x.data(), DType::kF32, 2, 3}, rows);
  });
  expect_contains(messages[0], "rank 1 has another table");
  expect_contains(messages[1], "rank 0 has another table");
  expect_contains(messages[2], "rank 1 has another table");
}

TEST(ExchangeErrors, SizesOfSumsThatDisagreeAreFoundByAllAndThePeerIsNamed) {
  const auto messages = corruption([](Communicator& group, bool odd) {
    const Buffer x = packed(std::vector<float>(6, 1.0f), DType::kF32);
    Buffer rows;
    DispatchOptions options;
    if (odd) options.bytes_per_sum = 24;
    dispatch(group, good_plan(), Placement::contiguous(4, 3, 3), {x.data(), DType::kF32, 2, 3}, rows,
             options);
  });
  expect_contains(messages[0], "rank 1 returns sums of 24 bytes, expected 12");
  expect_contains(messages[1], "rank 0 returns sums of 12 bytes, expected 24");
  expect_contains(messages[2], "rank 1");
}

TEST(ExchangeErrors, RowSizesThatDisagreeAreFoundByAllAndThePeerIsNamed) {
  const auto messages = corruption([](Communicator& group, bool odd) {
    const Buffer x = packed(std::vector<float>(8, 1.0f), DType::kF32);
    Buffer rows;
    dispatch(group, good_plan(), Placement::contiguous(4, 3, 3), {x.data(), DType::kF32, 2, odd ? 4 : 3},
             rows);
  });
  expect_contains(messages[0], "rank 1 sends rows of 16 bytes, expected 12");
  expect_contains(messages[1], "rank 0 sends rows of 12 bytes, expected 16");
  expect_contains(messages[2], "rank 1");
}

TEST(ExchangeErrors, RoutesThatDisagreeAreFoundByAllAndThePeerIsNamed) {
  const auto messages = corruption([](Communicator& group, bool odd) {
    const Buffer x = packed(std::vector<float>(6, 1.0f), DType::kF32);
    Buffer rows;
    dispatch(group, good_plan(), Placement::contiguous(4, 3, 3), {x.data(), DType::kF32, 2, 3}, rows,
             {.route = odd ? Route::kRail : Route::kFlat});
  });
  expect_contains(messages[0], "rank 1 asks for another route");
  expect_contains(messages[1], "rank 0 asks for another route");
  expect_contains(messages[2], "rank 1 asks for another route");
}

TEST(ExchangeErrors, WhenARankThrowsBetweenDispatchAndCombineTheOthersLosePeers) {
  for (const Route route : kRoutes) {
    SCOPED_TRACE(name_of(route));
    for (const int world_size : {2, 4}) {
      std::vector<int> lost(static_cast<std::size_t>(world_size), 0);
      EXPECT_THROW(run_world(Topology::uniform(world_size, 2),
                             [&](Communicator& group) {
                               try {
                                 Trip trip(group, cases()[0], DType::kF32, {.route = route});
                                 trip.go();
                                 if (group.rank() == 1) throw NonFinite("an expert gave nan");
                                 // A quick rank may find all rows of one round under way; not those of the
                                 // next.
                                 for (int i = 0; i < 3; ++i) trip.come_back("x", scale_by_id, DType::kF32);
                               } catch (const PeerLost& e) {
                                 lost[static_cast<std::size_t>(group.rank())] = e.rank() == 1;
                                 throw;
                               }
                             }),
                   NonFinite);
      std::vector<int> expected(static_cast<std::size_t>(world_size), 1);
      expected[1] = 0;
      EXPECT_EQ(lost, expected);
    }
  }
}

// Not a word from it, as when its process is stopped: all others end within the timeout, also those that it
// sends nothing to itself.
TEST(ExchangeErrors, WhenARankFallsSilentTheOthersLosePeersWithinTheTimeout) {
  constexpr std::chrono::milliseconds kTimeout{300};
  for (const Route route : kRoutes) {
    SCOPED_TRACE(name_of(route));
    std::atomic<int> lost = 0;
    EXPECT_THROW(run_world(
                     Topology::uniform(4, 2),
                     [&](Communicator& group) {
                       Trip trip(group, cases()[0], DType::kF32, {.route = route});
                       trip.go();
                       if (group.rank() == 2) {
                         const auto start = std::chrono::steady_clock::now();
                         while (lost < 3 && std::chrono::steady_clock::now() - start < kTestTimeout) {
                           std::this_thread::sleep_for(std::chrono::milliseconds(1));
                         }
                         return;
                       }
                       try {
                         for (int i = 0; i < 3; ++i) trip.come_back("x", scale_by_id, DType::kF32);
                       } catch (const PeerLost&) {
                         ++lost;
                         throw;
                       }
                     },
                     kTimeout),
                 PeerLost);
    EXPECT_EQ(lost, 3);
  }
}

}  // namespace
}  // namespace moesaic::exchange_checks
