#include "moesaic/shard/coded_gather.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/executor.h"
#include "moesaic/core/bf16.h"
#include "moesaic/shard/gather_header.h"
#include "tests/comm/thrown.h"
#include "tests/comm/worlds.h"
#include "tests/shard/flipping_transport.h"

namespace moesaic::testing {
namespace {

using codec::Method;

constexpr Method kCoded[] = {Method::kEntropy, Method::kInt8, Method::kExponentReuse, Method::kResidual,
                             Method::kMomentum};

// One unit in a world of `world_size` ranks: uneven parts, one of them empty, in the opposite order.
struct Unit {
  std::vector<std::int64_t> words, offsets;
  std::int64_t total = 0;

  explicit Unit(int world_size, std::int64_t most = 700) {
    for (int part = 0; part < world_size; ++part) words.push_back(part == 1 ? 0 : most - 101 * part);
    offsets.resize(words.size());
    for (auto part = std::ssize(words) - 1; part >= 0; --part) {
      offsets[static_cast<std::size_t>(part)] = total;
      total += words[static_cast<std::size_t>(part)];
    }
  }
};

// Weights of all parts that move a little every step.
class Weights {
 public:
  explicit Weights(std::int64_t total) : values_(static_cast<std::size_t>(total)) {
    for (float& value : values_) value = normal_(random_) * 0.02f;
  }
  void step() {
    for (float& value : values_) value += normal_(random_) * 1e-4f;
  }
  std::vector<std::uint16_t> words() const {
    std::vector<std::uint16_t> words;
    for (const float value : values_) words.push_back(to_bf16(value).bits);
    return words;
  }

 private:
  std::mt19937 random_{7};
  std::normal_distribution<float> normal_;
  std::vector<float> values_;
};

std::span<const std::uint16_t> part_of(const std::vector<std::uint16_t>& all, const Unit& unit, int part) {
  return std::span(all).subspan(static_cast<std::size_t>(unit.offsets[static_cast<std::size_t>(part)]),
                                static_cast<std::size_t>(unit.words[static_cast<std::size_t>(part)]));
}

// Runs body(world, mode, method) on every world that is worth it.
void for_each_setting(const std::function<void(Communicator&, ReferenceMode, Method)>& body) {
  for (const Method method : kCoded) {
    for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
      SCOPED_TRACE(fmt::format("{}, reference {}", codec::name_of(method),
                               mode == ReferenceMode::kRank ? "rank" : "node"));
      for_each_world([&](Communicator& world) { body(world, mode, method); });
    }
  }
}

TEST(CodedGather, EveryRankGetsTheSendersWordsInEveryWorldMethodAndMode) {
  for_each_setting([](Communicator& world, ReferenceMode mode, Method method) {
    const Unit unit(world.size());
    Weights weights(unit.total);
    CodingSpace space;
    CodedGather gather(world, unit.words, unit.offsets, method, mode, 5, "experts", space);
    for (std::uint64_t version = 1; version <= 3; ++version) {
      const auto sent = weights.words();
      for (int round = 0; round < 2; ++round) {  // forward, backward
        std::vector<std::uint16_t> whole(sent.size(), 0xffff);
        gather.run(part_of(sent, unit, world.rank()), whole, version);
        if (codec::lossless(method)) {
          EXPECT_EQ(whole, sent);
        } else {
          // The same on all ranks, and near: a block's scale divides its largest value into 127.
          std::vector<std::uint16_t> of_rank_0 = whole;
          broadcast(world, std::as_writable_bytes(std::span(of_rank_0)), 0);
          EXPECT_EQ(whole, of_rank_0);
          EXPECT_NE(whole, sent);
        }
      }
      weights.step();
    }
    const GatherCounts& counts = gather.counts();
    const bool holds_words = codec::needs(method) >= codec::Keeps::kWords;
    EXPECT_EQ(counts.runs, 6);
    EXPECT_EQ(counts.unsent, holds_words ? 3 : 0);
    EXPECT_EQ(counts.resyncs, 0);
    EXPECT_EQ(counts.keys, codec::needs(method) == codec::Keeps::kNothing ? counts.keys : 1);
  });
}

TEST(CodedGather, PartsOfManySlicesArriveWhole) {
  const Unit unit(4, codec::kMaxChunkWords * 9 + 17);
  run_world(Topology::uniform(4, 2), [&](Communicator& world) {
    Weights weights(unit.total);
    for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
      CodingSpace space;
      CodedGather gather(world, unit.words, unit.offsets, Method::kMomentum, mode, 0, "experts", space);
      for (std::uint64_t version = 1; version <= 3; ++version) {
        const auto sent = weights.words();
        std::vector<std::uint16_t> whole(sent.size());
        gather.run(part_of(sent, unit, world.rank()), whole, version);
        EXPECT_EQ(whole, sent);
        weights.step();
      }
    }
  });
}

// Bits that a node's ranks send to others, per word of the own part.
double bits_between_nodes(Communicator& world, const std::function<void()>& gather, std::int64_t words) {
  const std::int64_t before = world.traffic().inter_node_bytes;
  gather();
  return static_cast<double>((world.traffic().inter_node_bytes - before) * 8) / static_cast<double>(words);
}

TEST(CodedGather, ADifferenceCostsAFractionAndTheSameVersionAVerdictBetweenNodes) {
  const Unit unit(4, 100'000);
  run_world(Topology::uniform(4, 2), [&](Communicator& world) {
    for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
      Weights weights(unit.total);
      CodingSpace space;
      CodedGather gather(world, unit.words, unit.offsets, Method::kMomentum, mode, 0, "experts", space);
      const std::int64_t own = unit.words[static_cast<std::size_t>(world.rank())];
      std::vector<std::uint16_t> whole(static_cast<std::size_t>(unit.total));
      const auto bits = [&](std::uint64_t version) {
        const auto sent = weights.words();
        return bits_between_nodes(
            world, [&] { gather.run(part_of(sent, unit, world.rank()), whole, version); }, own);
      };
      if (own == 0) {
        for (const std::uint64_t version : {1, 2, 2}) {
          weights.step();
          bits(version);
        }
        continue;
      }
      // Once to the other node, the key with its exponents coded; headers and verdict are small beside it.
      EXPECT_NEAR(bits(1), 10.6, 0.2);
      weights.step();
      EXPECT_LT(bits(2), 7.0);
      EXPECT_LT(bits(2), 0.01);
    }
  });
}

// What each rank holds is bit-equal to what was sent, whatever happened before; `harm` happens after the
// second step. Returns the resyncs of rank 0.
std::int64_t resyncs_after(ReferenceMode mode, const std::function<void(Communicator&, CodedGather&)>& harm) {
  std::int64_t resyncs = -1;
  run_world(Topology::uniform(4, 2), [&](Communicator& world) {
    const Unit unit(4);
    Weights weights(unit.total);
    CodingSpace space;
    CodedGather gather(world, unit.words, unit.offsets, Method::kMomentum, mode, 0, "experts", space);
    for (std::uint64_t version = 1; version <= 5; ++version) {
      if (version == 3) harm(world, gather);
      const auto sent = weights.words();
      std::vector<std::uint16_t> whole(sent.size());
      gather.run(part_of(sent, unit, world.rank()), whole, version);
      EXPECT_EQ(whole, sent) << "rank " << world.rank() << ", version " << version;
      weights.step();
    }
    if (world.rank() == 0) resyncs = gather.counts().resyncs;
  });
  return resyncs;
}

TEST(CodedGather, AFlippedBitInAStoredReferenceIsFoundAndAllSendKeys) {
  for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    // Rank 2, on the other node than rank 0, carries its part; rank 0 itself is the sender.
    for (const int holder : {2, 0}) {
      const std::int64_t resyncs = resyncs_after(mode, [&](Communicator& world, CodedGather& gather) {
        if (world.rank() == holder) gather.reference(0)->memory()[11] ^= std::byte{0x40};
      });
      EXPECT_EQ(resyncs, 1) << holder;
    }
  }
}

// Between the forward and the backward pass: the version is that which all hold.
TEST(CodedGather, AFlippedBitInWhatIsHeldIsFoundBeforeItIsUsedAgain) {
  const Unit unit(4, codec::kMaxChunkWords + 333);
  for (const Method method : {Method::kResidual, Method::kMomentum}) {
    for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
      for (const int holder : {2, 0}) {  // the carrier of part 0 on the other node, and its owner
        run_world(Topology::uniform(4, 2), [&](Communicator& world) {
          Weights weights(unit.total);
          CodingSpace space;
          CodedGather gather(world, unit.words, unit.offsets, method, mode, 0, "experts", space);
          for (std::uint64_t version = 1; version <= 3; ++version) {
            const auto sent = weights.words();
            for (const bool backward : {false, true}) {
              if (version == 2 && backward && world.rank() == holder) {
                // In the second chunk of the words.
                gather.reference(0)->memory()[codec::kMaxChunkWords * 2 + 100] ^= std::byte{0x01};
              }
              std::vector<std::uint16_t> whole(sent.size());
              gather.run(part_of(sent, unit, world.rank()), whole, version);
              EXPECT_EQ(whole, sent) << "rank " << world.rank() << ", version " << version;
            }
            weights.step();
          }
          EXPECT_EQ(gather.counts().resyncs, 1);
          EXPECT_EQ(gather.counts().keys, 2);
          EXPECT_EQ(gather.counts().unsent, 2);
          // Only who holds it can tell.
          EXPECT_EQ(gather.resync_reason().empty(), world.rank() != holder);
          if (world.rank() == holder) {
            EXPECT_SAYS(gather.resync_reason(), "the part of rank 0: chunk 1 of the words that are held");
          }
        });
      }
    }
  }
}

TEST(CodedGather, ARankThatForgotWhatItHeldIsSeenWhereTheVersionIsTheSame) {
  run_world(Topology::uniform(4, 2), [&](Communicator& world) {
    const Unit unit(4);
    CodingSpace space;
    CodedGather gather(world, unit.words, unit.offsets, Method::kMomentum, ReferenceMode::kNode, 0, "experts",
                       space);
    const auto sent = Weights(unit.total).words();
    for (int round = 0; round < 3; ++round) {
      if (round == 1 && world.rank() == 3) gather.reference(3)->reset();
      std::vector<std::uint16_t> whole(sent.size());
      gather.run(part_of(sent, unit, world.rank()), whole, 1);
      EXPECT_EQ(whole, sent);
    }
    EXPECT_EQ(gather.counts().resyncs, 1);
    if (world.rank() == 3) {
      EXPECT_SAYS(gather.resync_reason(), "the part of rank 3: nothing is held");
    }
  });
}

TEST(CodedGather, ARankThatHoldsNothingIsSeenByAllBeforeAnythingIsSent) {
  for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    for (const int rank : {0, 3}) {
      const std::int64_t resyncs = resyncs_after(mode, [&](Communicator& world, CodedGather& gather) {
        if (world.rank() != rank) return;
        for (int part = 0; part < world.size(); ++part) {
          if (gather.reference(part) != nullptr) gather.reference(part)->reset();
        }
      });
      EXPECT_EQ(resyncs, 1) << rank;
    }
  }
}

// Five steps by momentum, in the background as training does it; `damage(step, peer, bytes)` picks messages
// of rank 0 to harm. Returns the resyncs; throws what a rank threw.
std::int64_t resyncs_with_damage(ReferenceMode mode,
                                 const std::function<bool(int, int, std::size_t)>& damage) {
  std::atomic<std::int64_t> resyncs = -1;
  run_inproc(4, [&](Transport& transport) {
    std::atomic<int> step = 0;
    FlippingTransport flipping(transport, [&](int peer, std::size_t bytes) {
      return transport.rank() == 0 && damage(step, peer, bytes);
    });
    Communicator world(flipping, Topology::uniform(4, 2), kTestTimeout);
    const Unit unit(4, 40'000);
    Weights weights(unit.total);
    CodingSpace space;
    CodedGather gather(world, unit.words, unit.offsets, Method::kMomentum, mode, 0, "experts", space);
    for (step = 1; step <= 5; ++step) {
      const auto sent = weights.words();
      std::vector<std::uint16_t> whole(sent.size());
      start_job(
          world,
          [&] { gather.run(part_of(sent, unit, world.rank()), whole, static_cast<std::uint64_t>(step)); },
          "experts")
          .wait();
      EXPECT_EQ(whole, sent) << "rank " << world.rank() << ", step " << step;
      weights.step();
    }
    if (world.rank() == 0) resyncs = gather.counts().resyncs;
  });
  return resyncs;
}

TEST(CodedGather, AFlippedBitInAPayloadIsFoundAndAllSendKeys) {
  for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    bool done = false;
    // Of step 3, the coded part on its way to the other node.
    const auto resyncs = resyncs_with_damage(mode, [&](int step, int peer, std::size_t bytes) {
      return step == 3 && peer == 2 && bytes > 1000 && !std::exchange(done, true);
    });
    EXPECT_TRUE(done);
    EXPECT_EQ(resyncs, 1);
  }
}

TEST(CodedGather, APayloadThatIsDamagedEveryTimeEndsTheRunOnEveryRank) {
  const auto error = thrown_by([] {
    resyncs_with_damage(ReferenceMode::kNode, [](int step, int peer, std::size_t bytes) {
      return step == 3 && peer == 2 && bytes > 1000;
    });
  });
  EXPECT_SAYS(error, "gather of experts: some rank cannot decode what was sent, not even in full");
}

TEST(CodedGather, AFlippedBitInAHeaderEndsTheRunAndNamesItsSender) {
  for (const int reader : {1, 2}) {  // in the own node, and in the other
    const auto error = thrown_by([&] {
      resyncs_with_damage(ReferenceMode::kNode, [&](int step, int peer, std::size_t bytes) {
        return step == 3 && peer == reader && bytes == kGatherHeaderBytes;
      });
    });
    EXPECT_SAYS(error, "the gather header of rank 0 is damaged");
  }
}

// Of specs: odd sizes, all patterns, an empty last part.
TEST(CodedGather, EveryPatternAndOddSizesTravelBetweenThreeRanks) {
  for (const std::int64_t most : {0, 1, 7, 1009, 65535, 65536, 65537}) {
    SCOPED_TRACE(most);
    run_world(Topology::uniform(3, 1), [&](Communicator& world) {
      const std::vector<std::int64_t> words = {most, most, 0}, offsets = {0, most, 2 * most};
      CodingSpace space;
      for (const Method method : kCoded) {
        if (!codec::lossless(method)) continue;
        CodedGather gather(world, words, offsets, method, ReferenceMode::kNode, 0, "experts", space);
        std::vector<std::uint16_t> sent(static_cast<std::size_t>(2 * most));
        for (std::uint64_t version = 1; version <= 3; ++version) {
          // All patterns, against others each time: exponents, signs and NaN payloads change.
          for (std::size_t i = 0; i < sent.size(); ++i) {
            sent[i] = static_cast<std::uint16_t>(i * (2 * version + 1) + version * 0x7f80);
          }
          const auto rank = static_cast<std::size_t>(world.rank());
          const auto mine = std::span(sent).subspan(static_cast<std::size_t>(offsets[rank]),
                                                    static_cast<std::size_t>(words[rank]));
          std::vector<std::uint16_t> whole(sent.size());
          gather.run(mine, whole, version);
          EXPECT_EQ(whole, sent) << codec::name_of(method);
        }
      }
    });
  }
}

TEST(CodedGather, RanksThatRunDifferentMethodsAllSayWhichAndStop) {
  run_world(Topology::uniform(4, 2), [&](Communicator& world) {
    const Unit unit(4);
    CodingSpace space;
    CodedGather gather(world, unit.words, unit.offsets,
                       world.rank() == 3 ? Method::kResidual : Method::kMomentum, ReferenceMode::kRank, 9,
                       "experts", space);
    const auto sent = Weights(unit.total).words();
    std::vector<std::uint16_t> whole(sent.size());
    const auto error = thrown_by([&] { gather.run(part_of(sent, unit, world.rank()), whole, 1); });
    EXPECT_SAYS(error,
                "CorruptData: ranks disagree: rank 0 gathers unit 9 by momentum, rank 3 unit 9 by residual");
  });
}

TEST(CodedGather, RefusesRawAndWrongSizes) {
  run_world(Topology::one_node(2), [&](Communicator& world) {
    const Unit unit(2);
    CodingSpace space;
    EXPECT_SAYS(thrown_by([&] {
                  CodedGather(world, unit.words, unit.offsets, Method::kRaw, ReferenceMode::kNode, 0, "u",
                              space);
                }),
                "method raw, which has no code");
    EXPECT_SAYS(thrown_by([&] {
                  CodedGather(world, {1}, unit.offsets, Method::kEntropy, ReferenceMode::kNode, 0, "u",
                              space);
                }),
                "got 1 parts and 2 offsets, expected one for each of the 2 ranks");
    CodedGather gather(world, unit.words, unit.offsets, Method::kEntropy, ReferenceMode::kNode, 0, "u",
                       space);
    std::vector<std::uint16_t> mine(3), whole(static_cast<std::size_t>(unit.total));
    EXPECT_SAYS(thrown_by([&] { gather.run(mine, whole, 1); }), "got 3 words, expected");
  });
}

}  // namespace
}  // namespace moesaic::testing
