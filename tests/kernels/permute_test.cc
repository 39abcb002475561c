#include "moesaic/kernels/permute.h"

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

TEST(CountingPermute, OrdersByExpertAndKeepsSlotOrderWithinOne) {
  const std::vector<std::int32_t> expert = {3, 0, 1, 0, 3, 1, 0};
  std::vector<std::int64_t> begin(5, -1), position(7, -1);
  counting_permute(expert.data(), 7, 4, begin.data(), position.data());
  EXPECT_EQ(begin, (std::vector<std::int64_t>{0, 3, 5, 5, 7}));  // expert 2 is empty
  EXPECT_EQ(position, (std::vector<std::int64_t>{5, 0, 3, 1, 6, 4, 2}));
}

TEST(CountingPermute, NoSlotsGiveAllZeroCounts) {
  std::vector<std::int64_t> begin(4, -1);
  counting_permute(nullptr, 0, 3, begin.data(), nullptr);
  EXPECT_EQ(begin, (std::vector<std::int64_t>{0, 0, 0, 0}));
}

TEST(CountingPermute, PositionsAreAPermutationSortedByExpertThenSlot) {
  Slots slots(200);
  std::vector<std::int64_t> begin(5);
  counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
  std::vector<std::int64_t> slot_at(slots.size(), -1);
  for (std::int64_t s = 0; s < slots.size(); ++s) slot_at.at(slots.position[s]) = s;
  EXPECT_EQ(std::count(slot_at.begin(), slot_at.end(), -1), 0);
  for (std::int64_t p = 1; p < slots.size(); ++p) {
    const auto key = [&](std::int64_t at) { return std::pair(slots.expert[slot_at[at]], slot_at[at]); };
    EXPECT_LT(key(p - 1), key(p));
  }
}

TEST(CountingPermute, NamesASlotWhoseExpertDoesNotExist) {
  const std::vector<std::int32_t> expert = {0, 4};
  std::vector<std::int64_t> begin(5), position(2);
  try {
    counting_permute(expert.data(), 2, 4, begin.data(), position.data());
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("slot 1 has expert 4, expected 0..3"), std::string::npos)
        << e.what();
  }
}

class PermuteRows : public testing::TestWithParam<DType> {};

TEST_P(PermuteRows, CopyEveryRowToItsSlotsAndWriteEverything) {
  for (const std::int64_t num_rows : {0, 1, 9, 40}) {
    Slots slots(num_rows);
    std::vector<std::int64_t> begin(5);
    counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
    for (const std::int64_t width : kWidths) {
      const Rows rows = random_rows(GetParam(), num_rows * width, 1);
      Rows permuted(GetParam(), slots.size() * width);
      permute_rows(GetParam(), rows.data(), slots.begin.data(), slots.position.data(), num_rows, width,
                   permuted.data());
      for (std::int64_t i = 0; i < num_rows; ++i) {
        for (std::int64_t s = slots.begin[i]; s < slots.begin[i + 1]; ++s) {
          for (std::int64_t d = 0; d < width; ++d) {
            ASSERT_EQ(permuted.at(slots.position[s] * width + d), rows.at(i * width + d));
          }
        }
      }
    }
  }
}

TEST_P(PermuteRows, ScaledCopyEqualsTheOracleBitForBit) {
  for_every_target([] {
    for (const std::int64_t num_rows : {0, 1, 9, 40}) {
      Slots slots(num_rows);
      std::vector<std::int64_t> begin(5);
      counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
      for (const std::int64_t width : kWidths) {
        const Rows rows = random_rows(GetParam(), num_rows * width, 2);
        Rows fast(GetParam(), slots.size() * width), expected(GetParam(), slots.size() * width);
        permute_rows_scaled(GetParam(), rows.data(), slots.begin.data(), slots.position.data(),
                            slots.weight.data(), num_rows, width, fast.data());
        reference::permute_rows_scaled(GetParam(), rows.data(), slots.begin.data(), slots.position.data(),
                                       slots.weight.data(), num_rows, width, expected.data());
        ASSERT_EQ(fast, expected) << "rows " << num_rows << " width " << width;
        for (std::int64_t i = 0; i < fast.size(); ++i)
          ASSERT_FALSE(std::isnan(fast.at(i))) << "element " << i;
      }
    }
  });
}

TEST_P(PermuteRows, ScaledCopyMultipliesInFp32AndRoundsOnce) {
  Rows row(GetParam(), 2), permuted(GetParam(), 2);
  row.set(0, 1.5f);
  row.set(1, -2);
  const std::int64_t begin[] = {0, 1}, position[] = {0};
  const float factor = 1.0f / 3;
  permute_rows_scaled(GetParam(), row.data(), begin, position, &factor, 1, 2, permuted.data());
  Rows expected(GetParam(), 2);
  expected.set(0, 1.5f * factor);
  expected.set(1, -2 * factor);
  EXPECT_EQ(permuted, expected);
}

INSTANTIATE_TEST_SUITE_P(DTypes, PermuteRows, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(PermuteRows, RefuseOtherDtypesByName) {
  const std::int64_t begin[] = {0};
  try {
    permute_rows(DType::kI32, nullptr, begin, nullptr, 0, 4, nullptr);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("permute_rows: got dtype int32, expected fp32 or bf16"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace moesaic::kernels
