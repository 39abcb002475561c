#include "moesaic/kernels/ordered_sum.h"

#include "moesaic/core/error.h"
#include "moesaic/kernels/permute.h"
#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

class OrderedSum : public testing::TestWithParam<DType> {};

TEST_P(OrderedSum, WeightedSumEqualsTheOracleBitForBit) {
  for_every_target([] {
    for (const std::int64_t num_rows : {0, 1, 9, 40}) {
      Slots slots(num_rows);
      std::vector<std::int64_t> begin(5);
      counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
      for (const std::int64_t width : kWidths) {
        const Rows y = random_rows(GetParam(), slots.size() * width, 3);
        for (const float* weight :
             {static_cast<const float*>(slots.weight.data()), static_cast<const float*>(nullptr)}) {
          for (const DType result : {GetParam(), DType::kF32}) {
            Rows fast(result, num_rows * width), expected(result, num_rows * width);
            ordered_weighted_sum(GetParam(), y.data(), slots.begin.data(), slots.position.data(), weight,
                                 num_rows, width, result, fast.data());
            reference::ordered_weighted_sum(GetParam(), y.data(), slots.begin.data(), slots.position.data(),
                                            weight, num_rows, width, result, expected.data());
            ASSERT_EQ(fast, expected) << "rows " << num_rows << " width " << width;
            for (std::int64_t i = 0; i < fast.size(); ++i)
              ASSERT_FALSE(std::isnan(fast.at(i))) << "element " << i;
          }
        }
      }
    }
  });
}

// 1e8 + 1 - 1e8 is 0 in ascending order and 1 in another.
TEST_P(OrderedSum, SumsSlotsInAscendingOrderWhereverTheyLie) {
  for_every_target([] {
    const std::int64_t begin[] = {0, 3, 3}, position[] = {2, 0, 1};
    Rows y(GetParam(), 3), out(GetParam(), 2);
    y.set(2, 1);
    y.set(0, 1);
    y.set(1, 1);
    const float weight[] = {1e8f, 1, -1e8f};
    ordered_weighted_sum(GetParam(), y.data(), begin, position, weight, 2, 1, GetParam(), out.data());
    EXPECT_EQ(out.at(0), 0);
    EXPECT_EQ(out.at(1), 0) << "a row without slots";
  });
}

// (1 + 2^-12)^2 - 1 rounds the product first; a fused multiply-add would keep 2^-24.
TEST(OrderedSum, ProductsAreRoundedBeforeTheyAreAdded) {
  for_every_target([] {
    const float x = 1 + 0x1p-12f;
    const std::int64_t begin[] = {0, 2}, position[] = {0, 1};
    std::vector<float> y(16, -1), weight = {1, x}, out(8, kNaN);
    for (int d = 0; d < 8; ++d) y[d] = -1, y[8 + d] = x;
    ordered_weighted_sum(DType::kF32, y.data(), begin, position, weight.data(), 1, 8, DType::kF32,
                         out.data());
    for (const float sum : out) EXPECT_EQ(sum, 0x1p-11f);
  });
}

// 1 + 2^-9 has no bf16; the sum of two rows that have is not rounded to one.
TEST(OrderedSum, OfBf16RowsInFp32IsNotRounded) {
  for_every_target([] {
    const std::int64_t begin[] = {0, 2}, position[] = {0, 1}, width = 70;
    Rows y(DType::kBF16, 2 * width), exact(DType::kF32, width), rounded(DType::kBF16, width);
    for (std::int64_t d = 0; d < width; ++d) y.set(d, 1), y.set(width + d, 0x1p-9f);
    ordered_weighted_sum(DType::kBF16, y.data(), begin, position, nullptr, 1, width, DType::kF32,
                         exact.data());
    ordered_weighted_sum(DType::kBF16, y.data(), begin, position, nullptr, 1, width, DType::kBF16,
                         rounded.data());
    for (std::int64_t d = 0; d < width; ++d) {
      EXPECT_EQ(exact.at(d), 1 + 0x1p-9f) << d;
      EXPECT_EQ(rounded.at(d), 1) << d;
    }
  });
}

TEST(OrderedSum, OfFp32RowsInBf16IsRefused) {
  const std::int64_t begin[] = {0, 0};
  float y = 0, out = 0;
  try {
    ordered_weighted_sum(DType::kF32, &y, begin, begin, nullptr, 1, 1, DType::kBF16, &out);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "ordered_weighted_sum: got a result of bf16 from rows of fp32, expected the rows' or fp32");
  }
}

TEST_P(OrderedSum, SlotDotsEqualTheOracleBitForBit) {
  for_every_target([] {
    for (const std::int64_t num_rows : {0, 1, 9, 40}) {
      Slots slots(num_rows);
      std::vector<std::int64_t> begin(5);
      counting_permute(slots.expert.data(), slots.size(), 4, begin.data(), slots.position.data());
      for (const std::int64_t width : kWidths) {
        const Rows a = random_rows(GetParam(), num_rows * width, 4);
        const Rows y = random_rows(GetParam(), slots.size() * width, 5);
        Rows fast(DType::kF32, slots.size()), expected(DType::kF32, slots.size());
        slot_dots(GetParam(), a.data(), y.data(), slots.begin.data(), slots.position.data(), num_rows, width,
                  fast.floats());
        reference::slot_dots(GetParam(), a.data(), y.data(), slots.begin.data(), slots.position.data(),
                             num_rows, width, expected.floats());
        ASSERT_EQ(fast, expected) << "rows " << num_rows << " width " << width;
        for (std::int64_t s = 0; s < fast.size(); ++s) ASSERT_FALSE(std::isnan(fast.at(s))) << "slot " << s;
      }
    }
  });
}

TEST_P(OrderedSum, SlotDotsOfIntegersAreExact) {
  for_every_target([] {
    for (const std::int64_t width : kWidths) {
      Rows a(GetParam(), width), y(GetParam(), 2 * width);
      float expected[] = {0, 0};
      for (std::int64_t d = 0; d < width; ++d) {
        a.set(d, float(d % 5 - 2));
        for (const int row : {0, 1}) {
          y.set(row * width + d, float((d + row) % 7 - 3));
          expected[1 - row] += a.at(d) * y.at(row * width + d);  // slot 0 lies in row 1
        }
      }
      const std::int64_t begin[] = {0, 2}, position[] = {1, 0};
      float dot[] = {kNaN, kNaN};
      slot_dots(GetParam(), a.data(), y.data(), begin, position, 1, width, dot);
      EXPECT_EQ(dot[0], expected[0]) << width;
      EXPECT_EQ(dot[1], expected[1]) << width;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, OrderedSum, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace moesaic::kernels
