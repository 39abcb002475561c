#include "moesaic/shard/coded_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/executor.h"
#include "moesaic/core/bf16.h"
#include "tests/comm/thrown.h"
#include "tests/comm/worlds.h"
#include "tests/shard/flipping_transport.h"

namespace moesaic::testing {
namespace {

using codec::GradientWire;

// Parts of a stack of [16, cols] or taller matrices, one part empty, some ending inside a row.
struct Unit {
  std::int64_t cols;
  std::vector<std::int64_t> elements, offsets;
  std::vector<GradientPieces> pieces;
  std::int64_t total = 0;

  explicit Unit(int world_size, std::int64_t rows = 96, std::int64_t c = 48, std::uint32_t matrix_rows = 16)
      : cols(c) {
    for (int part = 0; part < world_size; ++part) {
      const std::int64_t count = part == 1 ? 0 : rows * cols - 7 * part;
      elements.push_back(count);
      offsets.push_back(total);
      pieces.push_back({{.words = static_cast<std::uint64_t>(count),
                         .rows = matrix_rows,
                         .cols = static_cast<std::uint32_t>(cols),
                         .offset = static_cast<std::uint64_t>(total)}});
      total += count;
    }
  }
};

// Rank `rank`'s gradient: rows of very different sizes; `zeros`: nothing from that element on.
std::vector<std::uint16_t> gradient_of(const Unit& unit, int rank, std::int64_t zeros) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> words(static_cast<std::size_t>(unit.total));
  for (std::int64_t i = 0; i < zeros; ++i) {
    const float scale = std::exp2(static_cast<float>(i / unit.cols % 11) - 8.0f);
    words[static_cast<std::size_t>(i)] = to_bf16(normal(random) * scale).bits;
  }
  return words;
}

TEST(CodedReduce, LosslessWiresGiveTheBitsOfThePlainSumInEveryWorld) {
  for (const GradientWire wire : {GradientWire::kBf16, GradientWire::kEntropy}) {
    SCOPED_TRACE(codec::name_of(wire));
    for_each_world([&](Communicator& world) {
      const Unit unit(world.size());
      ReduceSpace space;
      CodedReduce reduce(world, unit.elements, unit.offsets, unit.pieces, wire, 3, "experts", space);
      for (const std::int64_t zeros : {unit.total, unit.total / 3, std::int64_t{0}}) {
        const auto whole = gradient_of(unit, world.rank(), zeros);
        const auto own = static_cast<std::size_t>(unit.elements[static_cast<std::size_t>(world.rank())]);
        std::vector<float> plain(own), coded(own, NAN);
        reduce_scatter_v(world, std::as_bytes(std::span(whole)), DType::kBF16, unit.elements, plain,
                         unit.offsets);
        reduce.run(whole, coded);
        EXPECT_EQ(coded, plain);
      }
    });
  }
}

TEST(CodedReduce, ManySlicesAddUpToo) {
  run_world(Topology::from_nodes({0, 0, 0, 1, 1}), [](Communicator& world) {
    const Unit unit(world.size(), 4500, 96, 900);  // parts of 864,000 bytes
    ReduceSpace space;
    CodedReduce reduce(world, unit.elements, unit.offsets, unit.pieces, GradientWire::kEntropy, 3, "experts",
                       space);
    const auto whole = gradient_of(unit, world.rank(), unit.total);
    const auto own = static_cast<std::size_t>(unit.elements[static_cast<std::size_t>(world.rank())]);
    std::vector<float> plain(own), coded(own);
    reduce_scatter_v(world, std::as_bytes(std::span(whole)), DType::kBF16, unit.elements, plain,
                     unit.offsets);
    reduce.run(whole, coded);
    EXPECT_EQ(coded, plain);
    if (reduce.counts().words > 0) {
      EXPECT_LT(
          8.0 * static_cast<double>(reduce.counts().coded_bytes) / static_cast<double>(reduce.counts().words),
          11.0);
    }
  });
}

TEST(CodedReduce, Int8IsNearAndTheSameEveryTime) {
  run_world(Topology::uniform(4, 2), [](Communicator& world) {
    const Unit unit(world.size());
    ReduceSpace space;
    CodedReduce reduce(world, unit.elements, unit.offsets, unit.pieces, GradientWire::kInt8, 3, "experts",
                       space);
    const auto whole = gradient_of(unit, world.rank(), unit.total);
    const auto own = static_cast<std::size_t>(unit.elements[static_cast<std::size_t>(world.rank())]);
    std::vector<float> plain(own), coded(own), again(own);
    reduce_scatter_v(world, std::as_bytes(std::span(whole)), DType::kBF16, unit.elements, plain,
                     unit.offsets);
    reduce.run(whole, coded);
    reduce.run(whole, again);
    EXPECT_EQ(coded, again);
    float largest = 0;
    for (const float value : plain) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < own; ++i) EXPECT_NEAR(coded[i], plain[i], largest / 100) << i;
    if (own > 0) {
      EXPECT_NE(coded, plain);
    }
  });
}

TEST(CodedReduce, WhatHasNoTokensOnANodeSendsNextToNothing) {
  for (const GradientWire wire : codec::kGradientWires) {
    SCOPED_TRACE(codec::name_of(wire));
    run_world(Topology::uniform(4, 1), [&](Communicator& world) {
      const Unit unit(world.size(), 4000);
      ReduceSpace space;
      CodedReduce reduce(world, unit.elements, unit.offsets, unit.pieces, wire, 3, "experts", space);
      std::vector<float> sum(static_cast<std::size_t>(unit.elements[static_cast<std::size_t>(world.rank())]));
      // Ranks 0 and 2 have a gradient, 1 and 3 have not.
      const bool has_tokens = world.rank() % 2 == 0;
      reduce.run(gradient_of(unit, world.rank(), has_tokens ? unit.total : 0), sum);
      const double bits =
          8.0 * static_cast<double>(reduce.counts().coded_bytes) / static_cast<double>(reduce.counts().words);
      if (has_tokens) {
        EXPECT_GT(bits, 8.0);
      } else {
        EXPECT_LT(bits, 0.02);
      }
    });
  }
}

TEST(CodedReduce, AFlippedBitInAMessageEndsTheRunOfAll) {
  const auto error = thrown_by([] {
    run_inproc(4, [](Transport& transport) {
      FlippingTransport flipping(transport, [&](int peer, std::size_t bytes) {
        return transport.rank() == 0 && peer == 2 && bytes > 1000;
      });
      Communicator world(flipping, Topology::uniform(4, 2), kTestTimeout);
      const Unit unit(world.size());
      ReduceSpace space;
      CodedReduce reduce(world, unit.elements, unit.offsets, unit.pieces, GradientWire::kEntropy, 3,
                         "experts", space);
      std::vector<float> sum(static_cast<std::size_t>(unit.elements[static_cast<std::size_t>(world.rank())]));
      const auto whole = gradient_of(unit, world.rank(), unit.total);
      start_job(
          world, [&] { reduce.run(whole, sum); }, "experts")
          .wait();
      barrier(world);  // with those to whom nothing damaged came
    });
  });
  EXPECT_SAYS(error, "CorruptData: rank 2: gradient message of unit 12884901890: chunk 0: the checksum is");
}

TEST(CodedReduce, RefusesPiecesThatAreNotThePart) {
  run_world(Topology::one_node(2), [](Communicator& world) {
    Unit unit(2);
    unit.pieces[0][0].words -= 1;
    ReduceSpace space;
    EXPECT_SAYS(thrown_by([&] {
                  CodedReduce(world, unit.elements, unit.offsets, unit.pieces, GradientWire::kBf16, 0,
                              "experts", space);
                }),
                "the pieces of rank 0 have 4607 words, its part 4608");
  });
}

}  // namespace
}  // namespace moesaic::testing
