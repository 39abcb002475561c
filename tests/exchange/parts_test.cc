// The pieces of dispatch by themselves: what goes where, slot lists on arrival, offsets of sizes no test can
// allocate.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "moesaic/core/error.h"
#include "moesaic/exchange/exchange_lists.h"
#include "moesaic/exchange/move_blocks.h"
#include "moesaic/exchange/rows.h"
#include "moesaic/exchange/sender_side.h"
#include "moesaic/exchange/slot_lists.h"

namespace moesaic {
namespace {

using Int64s = std::vector<std::int64_t>;
using Int32s = std::vector<std::int32_t>;

RoutingPlan plan_of(Int32s ids, std::vector<float> weights, std::int64_t top_k, std::int64_t num_experts) {
  return {.num_tokens = std::ssize(ids) / top_k,
          .num_choices = top_k,
          .num_experts = num_experts,
          .expert_ids = std::move(ids),
          .weights = std::move(weights),
          .kept = {}};
}

TEST(SenderSide, SendsATokenOncePerOwnerWithItsSlotsInOrderOfChoice) {
  // Owners: experts 0 and 2 at rank 1, expert 1 at rank 0, expert 3 at rank 2.
  const auto placement = Placement::from_table({1, 0, 1, 2}, 3, 3);
  const auto side = sender_side(
      plan_of({2, 1, 0, /**/ -1, -1, -1, /**/ 3, -1, 0}, {.1f, .2f, .3f, 0, 0, 0, 0, 0, .6f}, 3, 4),
      placement);
  EXPECT_EQ(side.rows, (Int64s{1, 2, 1}));
  EXPECT_EQ(side.slots, (Int64s{1, 3, 1}));
  EXPECT_EQ(side.token, (Int64s{0, /**/ 0, 2, /**/ 2}));
  EXPECT_EQ(side.slots_of_row, (Int32s{1, /**/ 2, 1, /**/ 1}));
  EXPECT_EQ(side.position, (Int64s{1, /**/ 0, 2, 8, /**/ 6}));
  EXPECT_EQ(side.local_expert, (Int32s{0, /**/ 1, 0, 0, /**/ 0}));
  EXPECT_EQ(side.weight, (std::vector<float>{.2f, /**/ .1f, .3f, .6f, /**/ 0}));  // weight 0 is not absent
}

TEST(GatherRows, CopiesRunsAndGaps) {
  const std::vector<std::int16_t> source{0, 1, 10, 11, 20, 21, 30, 31, 40, 41};
  const Int64s token{0, 1, 3, 4, 4};
  std::vector<std::int16_t> target(10);
  gather_rows(reinterpret_cast<const std::byte*>(source.data()), token, 4,
              reinterpret_cast<std::byte*>(target.data()));
  EXPECT_EQ(target, (std::vector<std::int16_t>{0, 1, 10, 11, 30, 31, 40, 41, 40, 41}));
}

TEST(Offsets, AreExactForThreeHundredThousandTokensOfWidth8192) {
  const Int64s rows{300'000, 300'000, 0, 300'000};
  const std::int64_t bytes_per_row = row_bytes(DType::kF32, 8192);
  const std::int64_t part = std::int64_t{300'000} * 8192 * 4;  // 9.8 GB: past 32 bits
  EXPECT_EQ(scaled(rows, bytes_per_row), (Int64s{part, part, 0, part}));
  EXPECT_EQ(places_by_rank(scaled(rows, bytes_per_row)).begin.of_ranks,
            (Int64s{0, part, 2 * part, 2 * part}));
  EXPECT_EQ(first_of_part(rows, 3) * bytes_per_row, 2 * part);
  const auto topology = Topology::uniform(4, 4);
  BlockBytes bytes{.of_ranks = Int64s(16, part), .of_nodes = {}};
  const Places places = places_by_rank(Int64s(4, part));
  std::int64_t sent = 0;
  for (const Op& op :
       block_schedule(topology, 1, flat_steps(topology, 1), bytes, places.begin, places.begin).schedule.ops) {
    if (op.kind == OpKind::kSend) {
      sent += op.source.bytes;
      EXPECT_EQ(op.source.offset, op.peer * part) << "to " << op.peer;
    } else if (op.peer == 3) {
      EXPECT_EQ(op.target.offset, 3 * part);
      EXPECT_EQ(op.target.bytes, part);
    }
  }
  EXPECT_EQ(sent, 3 * part);
  EXPECT_THROW(check_rows("x", &sent, DType::kF32, std::int64_t{1} << 40, std::int64_t{1} << 30),
               InvalidArgument);
}

// One part as it arrives: two rows, three slots, for an owner of two experts.
struct Part {
  Int32s slots_of_row{2, 1}, expert{1, 0, 1};
  std::vector<float> weight{0.5f, 0.0f, 1.0f};

  DispatchHandle read(std::int64_t rows = 2, std::int64_t slots = 3) const {
    std::vector<std::byte> bytes;
    const auto add = [&](const auto& values) {
      const auto raw = std::as_bytes(std::span(values));
      bytes.insert(bytes.end(), raw.begin(), raw.end());
    };
    add(slots_of_row), add(expert), add(weight);
    DispatchHandle handle;
    handle.slot_begin = {0};
    read_slot_list(bytes, rows, slots, 2, 6, handle);
    return handle;
  }
};

template <typename Change>
void expect_corrupt(const std::string& says, Change change, std::int64_t rows = 2, std::int64_t slots = 3) {
  Part part;
  change(part);
  try {
    part.read(rows, slots);
    FAIL() << "accepted: " << says;
  } catch (const CorruptData& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("rank 6"), std::string::npos) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
  }
}

TEST(SlotLists, ArriveAsSentAndImpossibleOnesNameThePeer) {
  const auto handle = Part().read();
  EXPECT_EQ(handle.slot_begin, (Int64s{0, 2, 3}));
  EXPECT_EQ(handle.slot_expert, (Int32s{1, 0, 1}));
  EXPECT_EQ(handle.slot_weight, (std::vector<float>{0.5f, 0.0f, 1.0f}));
  expect_corrupt("local expert 2, expected 0..1", [](Part& p) { p.expert[2] = 2; });
  expect_corrupt("local expert -1", [](Part& p) { p.expert[0] = -1; });
  expect_corrupt("local expert 1 twice", [](Part& p) { p.expert[1] = 1; });
  expect_corrupt("weight nan", [](Part& p) { p.weight[1] = NAN; });
  expect_corrupt("a row with 0 slots", [](Part& p) {
    p.slots_of_row = {3, 0};
    p.slots_of_row[0] = 0;
  });
  expect_corrupt("a row with 3 slots, expected 1 to 2", [](Part& p) { p.slots_of_row = {3, 1}; });
  expect_corrupt("2 slots in all, but announced 3", [](Part& p) { p.slots_of_row = {1, 1}; });
  expect_corrupt(
      "32 bytes, expected 40", [](Part&) {}, 2, 4);
}

TEST(Masks, SayWhichRowsEachRankHasAndImpossibleOnesNameThePeer) {
  // Of nine ranks, two bytes a row.
  const std::vector<std::byte> masks{std::byte{1}, std::byte{1}, std::byte{128}, std::byte{0}};
  const auto forwarded = read_masks(masks, 4, Int64s{1, 0, 0, 0, 0, 0, 0, 1, 1}, 6);
  EXPECT_EQ(forwarded.source, 4);
  EXPECT_EQ(forwarded.rows_of_rank[0], Int64s{0});
  EXPECT_EQ(forwarded.rows_of_rank[7], Int64s{1});
  EXPECT_EQ(forwarded.rows_of_rank[8], Int64s{0});
  EXPECT_THROW(read_masks(masks, 4, Int64s{1, 0, 0, 0, 0, 0, 0, 0, 1}, 6), CorruptData);
  EXPECT_THROW(read_masks(std::vector{std::byte{4}}, 4, Int64s{0, 0}, 6), CorruptData);
}

TEST(Counts, ImpossibleOnesNameThePeer) {
  const auto topology = Topology::uniform(3, 2);
  const auto placement = Placement::from_table({0, 0, 1}, 3, 3);  // rank 2 owns nothing
  const Agreement mine{7, 12, 24, 0, 1};
  const auto check = [&](const Agreement& got, const Int64s& told) {
    check_told(got, mine, told, topology, placement, /*from=*/2, /*peer=*/6);
  };
  EXPECT_NO_THROW(check(mine, {0, 0, 0, /**/ 0, 0, 0, /**/ 0, 0}));
  EXPECT_NO_THROW(check(mine, {3, 2, 0, /**/ 6, 2, 0, /**/ 4, 0}));
  for (const auto& bad :
       std::vector<Int64s>{{-1, 0, 0, 0, 0, 0, 0, 0},
                           {3, 0, 0, 2, 0, 0, 3, 0},
                           {3, 0, 0, 7, 0, 0, 3, 0},
                           {0, 0, 0, 1, 0, 0, 0, 0},
                           {0, 0, 1, 0, 0, 1, 0, 0},
                           {3, 2, 0, 6, 2, 0, 2, 0},
                           {3, 2, 0, 6, 2, 0, 6, 0},
                           {3, 2, 0, 6, 2, 0, 4, 1},
                           {std::int64_t{1} << 60, 0, 0, std::int64_t{1} << 60, 0, 0, 0, 0}}) {
    EXPECT_THROW(check(mine, bad), CorruptData);
  }
  for (const Agreement& other :
       {Agreement{8, 12, 24, 0, 1}, Agreement{7, 16, 24, 0, 1}, Agreement{7, 12, 12, 0, 1},
        Agreement{7, 12, 24, 1, 1}, Agreement{7, 12, 24, 0, 2}}) {
    EXPECT_THROW(check(other, {0, 0, 0, 0, 0, 0, 0, 0}), CorruptData);
  }
}

}  // namespace
}  // namespace moesaic
