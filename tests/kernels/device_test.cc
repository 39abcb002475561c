// What the GPU twins do, task by task, played on the CPU, in both orders of lanes and tasks.

#include "moesaic/kernels/activation_device.h"
#include "moesaic/kernels/ordered_sum_device.h"
#include "moesaic/kernels/permute_device.h"
#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/top_k_device.h"
#include "tests/core/host_warp.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

constexpr bool kOrders[] = {false, true};

// Calls body(T{}, elements of a pack) for single elements, and for 16 bytes where rows are whole packs.
template <typename Body>
void for_every_pack(DType dtype, std::int64_t width, Body body) {
  if (dtype == DType::kF32) {
    body(float{}, std::integral_constant<int, 1>{});
    if (width % 4 == 0) body(float{}, std::integral_constant<int, 4>{});
  } else {
    body(BF16{}, std::integral_constant<int, 1>{});
    if (width % 8 == 0) body(BF16{}, std::integral_constant<int, 8>{});
  }
}

template <typename T>
const T* elements_of(const Rows& rows) {
  return static_cast<const T*>(rows.data());
}
template <typename T>
T* elements_of(Rows& rows) {
  return static_cast<T*>(rows.data());
}

void sort_on_warps(const std::vector<std::int32_t>& expert, std::int64_t experts, std::int64_t tile_slots,
                   bool backwards, std::vector<std::int64_t>& begin, std::vector<std::int64_t>& position) {
  const auto slots = static_cast<std::int64_t>(expert.size());
  const std::int64_t tiles = (slots + tile_slots - 1) / tile_slots;
  std::vector<std::int64_t> counts(experts * tiles, -99);
  const SlotTiles sort = {expert.data(), slots,         experts,      tile_slots,
                          tiles,         counts.data(), begin.data(), position.data()};
  run_warps(backwards, tiles, CountTile{sort});
  run_warps(backwards, experts, PrefixOfExpert{sort});
  run_warps(backwards, 1, PrefixOfExperts{sort});
  run_warps(backwards, tiles, PlaceTile{sort});
}

class DeviceTasks : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Rows, DeviceTasks, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(DeviceElements, RoundAndWidenAsTheCpuDoes) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const BF16 element{static_cast<std::uint16_t>(bits)};
    ASSERT_EQ(std::bit_cast<std::uint32_t>(widened(element)),
              std::bit_cast<std::uint32_t>(to_float(element)));
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const auto value = std::bit_cast<float>(bits << 16 | low);
      BF16 rounded;
      round_into(rounded, value);
      ASSERT_EQ(rounded.bits, to_bf16(value).bits) << bits << " " << low;
    }
  }
}

TEST(DeviceTopK, EqualsTheOracleWithTiesAndInfinities) {
  for (const bool backwards : kOrders) {
    for (const std::int64_t n : {1, 2, 31, 32, 33, 64, 127}) {
      for (const std::int64_t k : {1, 2, 8, 33, 127}) {
        if (k > n) continue;
        for (const std::int64_t rows : {0, 1, 5}) {
          std::vector<float> scores(rows * n);
          for (std::size_t i = 0; i < scores.size(); ++i) {
            const auto draw = random_bits(3, i, n) % 11;
            scores[i] = draw == 0 ? -kInf : draw == 1 ? -0.0f : draw == 2 ? kInf : float(draw) - 6;
          }
          std::vector<std::int32_t> ids(rows * k, -7), expected_ids(rows * k);
          std::vector<float> values(rows * k, kNaN), expected(rows * k);
          run_warps(backwards, rows, TopKOfRow{scores.data(), n, k, ids.data(), values.data()});
          reference::top_k(scores.data(), rows, n, k, expected_ids.data(), expected.data());
          ASSERT_EQ(ids, expected_ids) << "rows " << rows << " n " << n << " k " << k;
          ASSERT_TRUE(std::memcmp(values.data(), expected.data(), values.size() * 4) == 0);
        }
      }
    }
  }
}

TEST(DevicePermute, CountingSortEqualsTheOracleOverTilesOfAnySize) {
  for (const bool backwards : kOrders) {
    for (const std::int64_t slots : {0, 1, 31, 32, 33, 257, 3000}) {
      for (const std::int64_t experts : {1, 3, 64, 70}) {
        for (const std::int64_t tile_slots : {std::int64_t{32}, SlotTiles::slots_of_a_tile(slots)}) {
          std::vector<std::int32_t> expert(slots);
          // A third to one expert; some have none.
          for (std::size_t s = 0; s < expert.size(); ++s) {
            const auto draw = random_bits(5, s, experts);
            expert[s] = draw % 3 == 0 ? 0 : static_cast<std::int32_t>(draw / 3 % experts);
          }
          std::vector<std::int64_t> begin(experts + 1, -1), position(slots, -2), expected_begin(experts + 1),
              expected(slots);
          sort_on_warps(expert, experts, tile_slots, backwards, begin, position);
          reference::counting_permute(expert.data(), slots, experts, expected_begin.data(), expected.data());
          ASSERT_EQ(begin, expected_begin) << slots << " slots, " << experts << " experts";
          ASSERT_EQ(position, expected) << slots << " slots, " << experts << " experts";
        }
      }
    }
  }
}

TEST(DevicePermute, ASlotWhoseExpertDoesNotExistHasNoPosition) {
  std::vector<std::int64_t> begin(3), position(5);
  sort_on_warps({1, 2, 0, -1, 1}, 2, 32, false, begin, position);
  EXPECT_EQ(begin, (std::vector<std::int64_t>{0, 1, 3}));
  EXPECT_EQ(position, (std::vector<std::int64_t>{1, -1, 0, -1, 2}));
  // Such a slot is not moved, and adds nothing.
  const std::vector<std::int64_t> slot_begin = {0, 5}, nowhere(5, -1);
  const float row = 3, weight[5] = {1, 1, 1, 1, 1};
  float moved = -8, sum = -9;
  run_threads(false, 1,
              PermutePack<float, 1, false>{&row, slot_begin.data(), nowhere.data(), nullptr, 1, &moved});
  run_threads(false, 1, OrderedSumPack<float, 1>{&row, slot_begin.data(), nowhere.data(), weight, 1, &sum});
  EXPECT_EQ(moved, -8);
  EXPECT_EQ(sum, 0);
}

TEST(DevicePermute, TilesCoverAllSlotsAndStayFew) {
  for (const std::int64_t slots : {0ll, 1ll, 256ll, 257ll, 524288ll, 524289ll, 10000000ll}) {
    const std::int64_t tile = SlotTiles::slots_of_a_tile(slots), tiles = SlotTiles::tiles_of(slots);
    EXPECT_GE(tile * tiles, slots);
    EXPECT_LE(tiles, SlotTiles::kMostTiles);
    EXPECT_EQ(tile % kWarpLanes, 0);
  }
}

TEST_P(DeviceTasks, PermutedRowsEqualTheOracles) {
  for (const std::int64_t num_rows : {0, 1, 9, 40}) {
    Slots slots(num_rows);
    std::vector<std::int64_t> begin(5);
    reference::counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
    for (const std::int64_t width : kWidths) {
      const Rows rows = random_rows(GetParam(), num_rows * width, 3);
      Rows copied(GetParam(), slots.size() * width), scaled = copied;
      reference::permute_rows(GetParam(), rows.data(), slots.begin.data(), slots.position.data(), num_rows,
                              width, copied.data());
      reference::permute_rows_scaled(GetParam(), rows.data(), slots.begin.data(), slots.position.data(),
                                     slots.weight.data(), num_rows, width, scaled.data());
      for_every_pack(GetParam(), width, [&](auto element, auto elements) {
        using T = decltype(element);
        Rows got(GetParam(), slots.size() * width), got_scaled = got;
        run_threads(
            true, num_rows * (width / elements()),
            PermutePack<T, elements(), false>{elements_of<T>(rows), slots.begin.data(), slots.position.data(),
                                              nullptr, width, elements_of<T>(got)});
        run_threads(
            true, num_rows * (width / elements()),
            PermutePack<T, elements(), true>{elements_of<T>(rows), slots.begin.data(), slots.position.data(),
                                             slots.weight.data(), width, elements_of<T>(got_scaled)});
        ASSERT_EQ(got, copied) << num_rows << " rows of " << width;
        ASSERT_EQ(got_scaled, scaled) << num_rows << " rows of " << width;
      });
    }
  }
}

TEST_P(DeviceTasks, OrderedSumsAndDotsEqualTheOraclesBitForBit) {
  for (const std::int64_t num_rows : {0, 1, 9, 40}) {
    Slots slots(num_rows);
    std::vector<std::int64_t> begin(5);
    reference::counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
    for (const std::int64_t width : kWidths) {
      const Rows y = random_rows(GetParam(), slots.size() * width, 4),
                 a = random_rows(GetParam(), num_rows * width, 5);
      for (const float* weight :
           {static_cast<const float*>(slots.weight.data()), static_cast<const float*>(nullptr)}) {
        Rows expected(GetParam(), num_rows * width);
        reference::ordered_weighted_sum(GetParam(), y.data(), slots.begin.data(), slots.position.data(),
                                        weight, num_rows, width, GetParam(), expected.data());
        for_every_pack(GetParam(), width, [&](auto element, auto elements) {
          using T = decltype(element);
          Rows got(GetParam(), num_rows * width);
          run_threads(
              false, num_rows * (width / elements()),
              OrderedSumPack<T, elements()>{elements_of<T>(y), slots.begin.data(), slots.position.data(),
                                            weight, width, elements_of<T>(got)});
          ASSERT_EQ(got, expected) << num_rows << " rows of " << width;
        });
      }
      std::vector<float> dots(slots.size(), kNaN), expected(slots.size());
      reference::slot_dots(GetParam(), a.data(), y.data(), slots.begin.data(), slots.position.data(),
                           num_rows, width, expected.data());
      for (const bool backwards : kOrders) {
        if (GetParam() == DType::kF32) {
          run_warps(backwards, num_rows,
                    SlotDotsOfRow<float>{elements_of<float>(a), elements_of<float>(y), slots.begin.data(),
                                         slots.position.data(), width, dots.data()});
        } else {
          run_warps(backwards, num_rows,
                    SlotDotsOfRow<BF16>{elements_of<BF16>(a), elements_of<BF16>(y), slots.begin.data(),
                                        slots.position.data(), width, dots.data()});
        }
        ASSERT_TRUE(std::memcmp(dots.data(), expected.data(), dots.size() * 4) == 0);
      }
    }
  }
}

// With the same exponential as the oracle's the bits are the oracle's; a GPU's own differs in the last bit.
TEST_P(DeviceTasks, SwigluAndItsBackwardEqualTheOracles) {
  for (const std::int64_t rows : {0, 1, 3}) {
    for (const std::int64_t width : kWidths) {
      const Rows in = random_rows(GetParam(), rows * 2 * width, 6),
                 dh = random_rows(GetParam(), rows * width, 8);
      Rows h(GetParam(), rows * width), din(GetParam(), rows * 2 * width);
      reference::swiglu(GetParam(), in.data(), rows, width, h.data());
      reference::swiglu_backward(GetParam(), in.data(), dh.data(), rows, width, din.data());
      for_every_pack(GetParam(), width, [&](auto element, auto elements) {
        using T = decltype(element);
        Rows got(GetParam(), rows * width), got_din(GetParam(), rows * 2 * width);
        run_threads(true, rows * (width / elements()),
                    SwigluPack<T, elements()>{elements_of<T>(in), width, elements_of<T>(got)});
        run_threads(true, rows * (width / elements()),
                    SwigluBackwardPack<T, elements()>{elements_of<T>(in), elements_of<T>(dh), width,
                                                      elements_of<T>(got_din)});
        ASSERT_EQ(got, h);
        ASSERT_EQ(got_din, din);
      });
    }
  }
}

}  // namespace
}  // namespace moesaic::kernels
