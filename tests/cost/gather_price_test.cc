#include "moesaic/cost/gather_price.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/comm/thrown.h"
#include "tests/cost/calibrations.h"

namespace moesaic {
namespace {

using codec::Method;

constexpr double kMega = 1e6;

// 2 nodes of 2 ranks, a million words each.
GatherShape two_by_two(ReferenceMode mode) {
  return {.topology = Topology::uniform(4, 2),
          .words_of_rank = std::vector<std::int64_t>(4, 1'000'000),
          .mode = mode};
}

Calibration calibration() { return round_calibration(Topology::uniform(4, 2)); }

TEST(GatherLoad, CountsWhatTheBusiestDoes) {
  // Node 0: ranks 0, 1, 2; node 1: ranks 3, 4. Rank 3 carries for 0 and 2, rank 4 for 1; 0 for 3, 1 for 4.
  const GatherShape shape{.topology = Topology::from_nodes({0, 0, 0, 1, 1}),
                          .words_of_rank = {10, 20, 30, 1, 2}};
  const GatherLoad load = load_of(shape);
  EXPECT_EQ(load.own, 30);
  EXPECT_EQ(load.all, 63);
  EXPECT_EQ(load.through_card, 60);  // node 0 sends its three parts
  EXPECT_EQ(load.carried, 40);       // rank 3
  EXPECT_EQ(load.foreign, 62);       // rank 3 owns 1
  EXPECT_EQ(load.from_node,
            63 - 10 - 1);  // rank 0 owns 10 and carries 1: 2 gets 63 - 30, 3 gets 22, 4 gets 41
  EXPECT_EQ(load.messages_between, 1);
  EXPECT_EQ(load.messages_inside, 2 * 2);  // ranks 0 and 1: an own and a carried part to two peers each
}

TEST(GatherPrice, RawMovesWordsOnceBetweenNodesAndThenInside) {
  for (const auto mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    const Prediction p = predict(calibration(), two_by_two(mode), Method::kRaw, 16);
    // A card sends two parts of 2 MB at 12.5 MB/s; a rank gets two parts from its node at 1 GB/s.
    EXPECT_DOUBLE_EQ(p.between, 100e-6 + 4 * kMega / 12.5e6);
    EXPECT_DOUBLE_EQ(p.inside, 2 * 10e-6 + 4 * kMega / 1e9);
    EXPECT_EQ(p.header + p.encode + p.decode, 0);
    EXPECT_DOUBLE_EQ(p.total, p.between + p.inside);
    EXPECT_DOUBLE_EQ(p.network(), p.between + p.inside);
  }
}

TEST(GatherPrice, ByRankCodedBytesGoEverywhereAndAllDecode) {
  const Prediction p = predict(calibration(), two_by_two(ReferenceMode::kRank), Method::kMomentum, 4);
  // Header and verdict, 64 bytes from each of three others.
  EXPECT_DOUBLE_EQ(p.header, 2 * 100e-6 + 192 / 12.5e6 + 4 * 10e-6 + 192 / 1e9);
  EXPECT_DOUBLE_EQ(p.encode, 2 * kMega / 0.5e9);
  EXPECT_DOUBLE_EQ(p.between, 100e-6 + 1 * kMega / 12.5e6);  // half a byte a word, two parts
  EXPECT_DOUBLE_EQ(p.inside, 2 * 10e-6 + 1 * kMega / 1e9);
  EXPECT_DOUBLE_EQ(p.decode, 3 * 2 * kMega / 1e9);
  EXPECT_DOUBLE_EQ(p.total, p.header + p.encode + p.between + p.inside + p.decode);
}

TEST(GatherPrice, ByNodeWordsMoveInsideAndOneDecodes) {
  const Prediction p = predict(calibration(), two_by_two(ReferenceMode::kNode), Method::kMomentum, 4);
  EXPECT_DOUBLE_EQ(p.between, 100e-6 + 1 * kMega / 12.5e6);
  EXPECT_DOUBLE_EQ(p.inside, 2 * 10e-6 + 4 * kMega / 1e9);
  EXPECT_DOUBLE_EQ(p.decode, 1 * 2 * kMega / 1e9);
}

TEST(GatherPrice, SlicesOverlapAllButTheLongestStage) {
  GatherShape shape = two_by_two(ReferenceMode::kRank);
  shape.slices = 10;
  const Prediction p = predict(calibration(), shape, Method::kMomentum, 4);
  EXPECT_DOUBLE_EQ(p.between, 10 * 100e-6 + 1 * kMega / 12.5e6);  // more messages
  EXPECT_DOUBLE_EQ(p.inside, 10 * 2 * 10e-6 + 1 * kMega / 1e9);
  EXPECT_DOUBLE_EQ(p.total, p.header + p.between + (p.encode + p.inside + p.decode) / 10);
}

TEST(GatherPrice, ASecondGatherMovesNoWordsBetweenNodesWhereTheyAreKept) {
  for (const auto mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    GatherShape shape = two_by_two(mode);
    const auto price = [&](Method method) { return predict(calibration(), shape, method, 4); };
    const Prediction once = price(Method::kMomentum), raw = price(Method::kRaw),
                     reuse = price(Method::kExponentReuse);
    shape.regathers = 1;
    const Prediction twice = price(Method::kMomentum);
    EXPECT_EQ(twice.between, once.between);
    EXPECT_EQ(twice.encode, once.encode);
    // The verdict, 8 bytes from each of three others.
    EXPECT_DOUBLE_EQ(twice.header - once.header, 100e-6 + 24 / 12.5e6 + 2 * 10e-6 + 24 / 1e9);
    const bool by_node = mode == ReferenceMode::kNode;
    EXPECT_DOUBLE_EQ(twice.inside, by_node ? 2 * once.inside : once.inside);
    // memcpy at 4 GB/s: of the whole unit, or of the part that the rank holds for its node.
    EXPECT_DOUBLE_EQ(twice.decode - once.decode, (by_node ? 2 : 8) * kMega / 4e9);
    EXPECT_DOUBLE_EQ(price(Method::kRaw).total, 2 * raw.total);
    EXPECT_DOUBLE_EQ(price(Method::kExponentReuse).total, 2 * reuse.total);  // it keeps exponents only
  }
}

TEST(GatherPrice, OneNodeHasNoCard) {
  const GatherShape shape{.topology = Topology::one_node(4),
                          .words_of_rank = std::vector<std::int64_t>(4, 1000)};
  const Calibration calibration = round_calibration(shape.topology);
  EXPECT_EQ(predict(calibration, shape, Method::kRaw, 16).between, 0);
  EXPECT_DOUBLE_EQ(predict(calibration, shape, Method::kRaw, 16).inside, 3 * 10e-6 + 6000 / 1e9);
}

TEST(GatherPrice, AloneNothingCostsAnything) {
  const GatherShape shape{.words_of_rank = {1'000'000}, .regathers = 1};
  for (const Method method : codec::kMethods) {
    EXPECT_EQ(predict(round_calibration(shape.topology), shape, method, 3).total, 0);
  }
}

TEST(GatherPrice, MoreOfAnythingIsNeverCheaper) {
  std::mt19937_64 random(7);
  const auto draw = [&](double least, double most) {
    return least * std::pow(most / least, std::uniform_real_distribution<>(0, 1)(random));
  };
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = 2 + trial % 6;
    GatherShape shape{.topology = Topology::uniform(ranks, 1 + trial % 3),
                      .words_of_rank = {},
                      .mode = trial % 2 == 0 ? ReferenceMode::kRank : ReferenceMode::kNode,
                      .regathers = trial % 3,
                      .slices = 1 + trial % 5};
    for (int r = 0; r < ranks; ++r) shape.words_of_rank.push_back(static_cast<std::int64_t>(draw(1, 1e7)));
    const Calibration slow = round_calibration(shape.topology, draw(1e5, 1e10));
    Calibration fast = slow;
    fast.between.seconds_per_byte /= 2;
    GatherShape larger = shape;
    larger.words_of_rank[static_cast<std::size_t>(trial % ranks)] *= 2;
    for (const Method method : codec::kMethods) {
      const double bits = draw(0.1, 16);
      const double price = predict(slow, shape, method, bits).total;
      EXPECT_LE(predict(fast, shape, method, bits).total, price);
      EXPECT_GE(predict(slow, larger, method, bits).total, price);
      EXPECT_GE(predict(slow, shape, method, bits * 1.5).total, price);
      EXPECT_TRUE(std::isfinite(price) && price > 0);
    }
  }
}

TEST(GatherPrice, BadShapesAreNamed) {
  const auto price = [](auto change, double bits = 4) {
    GatherShape shape = two_by_two(ReferenceMode::kRank);
    change(shape);
    return thrown_by([&] { (void)predict(calibration(), shape, Method::kMomentum, bits); });
  };
  EXPECT_SAYS(price([](GatherShape& s) { s.words_of_rank.pop_back(); }),
              "got 3 parts, expected one for each of 4");
  EXPECT_SAYS(price([](GatherShape& s) { s.words_of_rank[2] = -1; }), "the part of rank 2 has -1 words");
  EXPECT_SAYS(price([](GatherShape& s) { s.slices = 0; }), "got 0 slices");
  EXPECT_SAYS(price([](GatherShape& s) { s.regathers = -1; }), "got -1 regathers");
  for (const double bits : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    EXPECT_SAYS(price([](GatherShape&) {}, bits), "bits a word, expected a finite number above 0");
  }
}

}  // namespace
}  // namespace moesaic
