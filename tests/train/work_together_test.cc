#include "moesaic/train/work_together.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

using namespace std::chrono_literals;

constexpr auto kTimeout = 1500ms;
constexpr auto kLong = 4000ms;

TEST(WorkTogether, RanksThatWaitLongerThanTheTimeoutForAWorkingOneAreNotLost) {
  std::atomic<int> finished = 0;
  run_world(
      Topology::one_node(3),
      [&](Communicator& world) {
        work_together(world, [&] {
          if (world.rank() == 1) std::this_thread::sleep_for(kLong);
          ++finished;
        });
        EXPECT_EQ(finished, 3) << "it returns when all have done theirs";
        work_together(world, [] {});
        barrier(world);
      },
      kTimeout);
}

TEST(WorkTogether, ARankThatDoesNotComeIsLost) {
  try {
    run_world(
        Topology::one_node(3),
        [&](Communicator& world) {
          if (world.rank() == 1) {
            std::this_thread::sleep_for(kLong);
          } else {
            work_together(world, [] {});
          }
        },
        kTimeout);
    FAIL();
  } catch (const PeerLost& error) {
    EXPECT_EQ(error.rank(), 1) << error.what();
  }
}

TEST(WorkTogether, WhatTheWorkThrowsIsThrownOnItsRank) {
  try {
    run_world(Topology::one_node(3), [](Communicator& world) {
      work_together(world, [&] {
        if (world.rank() == 2) throw NonFinite("the work failed");
      });
    });
    FAIL();
  } catch (const NonFinite& error) {
    EXPECT_STREQ(error.what(), "rank 2: the work failed");
  }
}

TEST(WorkTogether, ALoneRankWorksInItsOwnThread) {
  run_world(Topology::one_node(1), [](Communicator& world) {
    const auto here = std::this_thread::get_id();
    work_together(world, [&] { EXPECT_EQ(std::this_thread::get_id(), here); });
  });
}

}  // namespace
}  // namespace moesaic
