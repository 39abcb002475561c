#include "moesaic/cost/reduce_price.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/comm/thrown.h"
#include "tests/cost/calibrations.h"

namespace moesaic {
namespace {

constexpr double kMega = 1e6;

TEST(ReducePrice, SumsInsideCrossesOnceAndAddsAtTheOwner) {
  const Topology topology = Topology::uniform(6, 2);
  const ReduceShape shape{topology, std::vector<std::int64_t>(6, 1'000'000)};
  const ReducePrediction plain = predict_reduce(round_calibration(topology), shape, false, 16);
  // A rank gets from its neighbour the own part and the two it carries; a card takes in, for each of its two
  // owners, the sums of two other nodes.
  EXPECT_DOUBLE_EQ(plain.inside, 10e-6 + 3 * 2 * kMega / 1e9);
  EXPECT_DOUBLE_EQ(plain.between, 2 * 100e-6 + 4 * 2 * kMega / 12.5e6);
  EXPECT_EQ(plain.encode + plain.decode, 0);
  const ReducePrediction coded = predict_reduce(round_calibration(topology), shape, true, 10);
  EXPECT_EQ(coded.inside, plain.inside);
  EXPECT_DOUBLE_EQ(coded.between, 2 * 100e-6 + 4 * 1.25 * kMega / 12.5e6);
  EXPECT_DOUBLE_EQ(coded.encode, 2 * 2 * kMega / 0.5e9);  // two owners' sums
  EXPECT_DOUBLE_EQ(coded.decode, 2 * 2 * kMega / 1e9);    // two nodes' sums
  EXPECT_DOUBLE_EQ(coded.total(), coded.inside + coded.encode + coded.between + coded.decode);
}

TEST(ReducePrice, IsThatOfTheBusiest) {
  // Rank 3 alone on node 1 carries for 0, 1 and 2.
  const Topology topology = Topology::from_nodes({0, 0, 0, 1});
  const ReduceShape shape{topology, {1'000'000, 2'000'000, 3'000'000, 500'000}};
  const ReducePrediction coded = predict_reduce(round_calibration(topology), shape, true, 16);
  EXPECT_DOUBLE_EQ(coded.encode, 6 * 2 * kMega / 0.5e9);
  EXPECT_DOUBLE_EQ(coded.between, 100e-6 + 6 * 2 * kMega / 12.5e6);
  EXPECT_DOUBLE_EQ(coded.decode, 3 * 2 * kMega / 1e9);
  EXPECT_DOUBLE_EQ(coded.inside, 2 * 10e-6 + 2 * 3 * 2 * kMega / 1e9);
}

TEST(ReducePrice, OnOneNodeNothingIsCoded) {
  const Topology topology = Topology::one_node(3);
  const ReduceShape shape{topology, std::vector<std::int64_t>(3, 100)};
  const Calibration calibration = round_calibration(topology);
  EXPECT_EQ(predict_reduce(calibration, shape, true, 10).total(),
            predict_reduce(calibration, shape, false, 16).total());
  EXPECT_EQ(predict_reduce(round_calibration(Topology::one_node(1)), {Topology::one_node(1), {5}}, false, 16)
                .total(),
            0);
}

TEST(ReducePrice, RejectsShapesThatCannotBe) {
  const Topology topology = Topology::one_node(2);
  const auto said = [&](std::vector<std::int64_t> words, double bits) {
    return thrown_by([&] { predict_reduce(round_calibration(topology), {topology, words}, true, bits); });
  };
  EXPECT_SAYS(said({1}, 16), "got 1 parts, expected one for each of 2 ranks");
  EXPECT_SAYS(said({1, -1}, 16), "the part of rank 1 has -1 words");
  EXPECT_SAYS(said({1, 1}, -1), "got -1 bits a word");
  EXPECT_SAYS(said({1, 1}, std::numeric_limits<double>::quiet_NaN()), "bits a word");
}

}  // namespace
}  // namespace moesaic
