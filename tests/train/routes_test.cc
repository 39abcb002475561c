// Training under every route of exchanged tokens, and in chunks.
#include <gtest/gtest.h>

#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

Config exchanging(const std::filesystem::path& text, int ranks, int ranks_per_node) {
  Config config = with_layout(
      small_config(text),
      {.name = "exchange", .ranks = ranks, .experts = {"exchange"}, .ranks_per_node = ranks_per_node});
  config.train.accumulation = 2;
  config.train.recompute = {"none", "full"};
  config.comm.route = Route::kFlat;
  return config;
}

// Losses, gradients and parameters; and it took the way that was asked for.
void expect_same(const Outcome& got, const Outcome& flat, std::optional<Route> route) {
  ASSERT_EQ(got.steps.size(), flat.steps.size());
  for (std::size_t i = 0; i < flat.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].loss, flat.steps[i].loss) << "step " << i + 1;
    EXPECT_EQ(got.steps[i].gradient_norm, flat.steps[i].gradient_norm) << "step " << i + 1;
    ASSERT_EQ(got.steps[i].routes.size(), 2u);
    for (const auto& taken : got.steps[i].routes) {
      ASSERT_TRUE(taken.has_value());
      EXPECT_EQ(name_of(*taken), name_of(route.value_or(*taken)));
    }
  }
  EXPECT_TRUE(got.gradients == flat.gradients);
  EXPECT_TRUE(got.parameters == flat.parameters);
}

TEST(Routes, TrainToTheSameBitsOnEvenAndUnevenNodes) {
  const TempFolder folder;
  const auto text = write_text(folder.path());
  for (const auto& [ranks, per_node, dtype] :
       {std::tuple{4, 2, DType::kBF16}, std::tuple{3, 2, DType::kF32}}) {
    Config config = exchanging(text, ranks, per_node);
    config.train.dtype = dtype;
    config.codec.method = codec::Method::kRaw;
    const Outcome flat = train(config, 3);
    for (const auto route : {Route::kLeader, Route::kRail, Route::kRailDedup}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", name_of(route), ranks));
      config.comm.route = route;
      expect_same(train(config, 3), flat, route);
    }
    SCOPED_TRACE(fmt::format("auto on {} ranks", ranks));
    config.comm.route.reset();
    expect_same(train(config, 3), flat, std::nullopt);
  }
}

TEST(Chunks, TrainToTheSameBitsWithSharedExpertsCapacityAndRecomputation) {
  const TempFolder folder;
  const auto text = write_text(folder.path());
  for (const auto& [ranks, per_node, dtype] :
       {std::tuple{4, 2, DType::kBF16}, std::tuple{3, 2, DType::kF32}}) {
    Config config = exchanging(text, ranks, per_node);
    config.train.dtype = dtype;
    config.codec.method = codec::Method::kRaw;
    config.model.moe.num_shared_experts = 1;
    config.model.moe.d_shared = 24;
    config.comm.overlap = false;
    const Outcome waiting = train(config, 3);
    EXPECT_GT(waiting.steps[0].dropped, 0);
    config.comm.overlap = true;
    for (const std::int64_t chunks : {0, 1, 3, 100}) {
      SCOPED_TRACE(fmt::format("{} chunks on {} ranks", chunks, ranks));
      config.comm.exchange_chunks = chunks;
      expect_same(train(config, 3), waiting, Route::kFlat);
    }
    config.comm.route = Route::kRailDedup;
    config.comm.exchange_chunks = 3;
    SCOPED_TRACE(fmt::format("rail_dedup on {} ranks", ranks));
    expect_same(train(config, 3), waiting, Route::kRailDedup);
  }
}

// comm.wire.
TEST(Wire, InFp32TrainsToBitsOfItsOwnThatAreTheSameByEveryRouteAndInChunks) {
  const TempFolder folder;
  Config config = exchanging(write_text(folder.path()), 4, 2);
  config.train.dtype = DType::kBF16;
  config.codec.method = codec::Method::kRaw;
  const Outcome rounded = train(config, 2);
  config.comm.wire = DType::kF32;
  const Outcome flat = train(config, 2);
  EXPECT_FALSE(flat.gradients == rounded.gradients);
  EXPECT_NE(flat.steps[0].loss, rounded.steps[0].loss);
  config.comm.exchange_chunks = 3;
  for (const auto route : {Route::kLeader, Route::kRailDedup}) {
    SCOPED_TRACE(name_of(route));
    config.comm.route = route;
    expect_same(train(config, 2), flat, route);
  }
}

TEST(Wire, InFp32IsThatOfAnFp32Model) {
  const TempFolder folder;
  Config config = exchanging(write_text(folder.path()), 2, 1);
  const Outcome plain = train(config, 2);
  config.comm.wire = DType::kF32;
  expect_same(train(config, 2), plain, Route::kFlat);
}

TEST(Routes, AreNotReportedWhereExpertsAreGathered) {
  const TempFolder folder;
  Config config = with_layout(small_config(write_text(folder.path())),
                              {.name = "mixed", .ranks = 2, .experts = {"gather", "exchange"}});
  const Outcome outcome = train(config, 1);
  EXPECT_EQ(outcome.steps[0].routes, (std::vector<std::optional<Route>>{std::nullopt, Route::kFlat}));
}

}  // namespace
}  // namespace moesaic::testing
