#include "moesaic/kernels/panels.h"

#include <numeric>

#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

std::vector<std::int64_t> each(std::int64_t n) {
  std::vector<std::int64_t> row(n);
  std::iota(row.begin(), row.end(), 0);
  return row;
}

std::vector<float> panels_of(const Rows& rows, std::int64_t n, std::int64_t width) {
  std::vector<float> panels(panel_elements(n, width));
  pack_panels(rows.dtype, rows.data(), each(n).data(), nullptr, n, width, panels.data());
  return panels;
}

std::vector<float> rows_of(const std::vector<float>& panels, std::int64_t n, std::int64_t width) {
  std::vector<float> rows(n * width);
  unpack_panels(DType::kF32, panels.data(), n, width, rows.data());
  return rows;
}

// Widths around a tile, a panel, a block's depth (256) and its rows (192 with eight lanes).
constexpr std::int64_t kShapes[][2] = {{1, 1},   {5, 6},     {6, 7},     {17, 13},  {16, 192},
                                       {40, 33}, {257, 198}, {256, 384}, {300, 18}, {3, 390}};

TEST(TransposedPanelProduct, HasTheBitsOfTheProductWithTheTransposedMatrix) {
  for_every_target([] {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const auto& [m, k] : kShapes) {
        for (const std::int64_t n : {1, 8, 9, 16, 17, 40}) {
          const Rows w = random_rows(dtype, m * k, 1), in = random_rows(DType::kF32, n * m, 2);
          Rows transposed(dtype, m * k);
          for (std::int64_t i = 0; i < m * k; ++i) transposed.set(i % k * m + i / k, w.at(i));
          const std::vector<float> panels = panels_of(in, n, m);
          std::vector<float> got(panel_elements(n, k)), expected(panel_elements(n, k));
          transposed_panel_product(dtype, w.data(), m, k, panels.data(), n, got.data());
          panel_product(dtype, transposed.data(), k, m, panels.data(), n, expected.data());
          ASSERT_EQ(rows_of(got, n, k), rows_of(expected, n, k))
              << name_of(dtype) << " m " << m << " k " << k << " n " << n;
        }
      }
    }
  });
}

TEST(OuterProduct, IsTheSumOverSlots) {
  for_every_target([] {
    for (const auto& [m, k] : kShapes) {
      for (const std::int64_t n : {1, 8, 9, 16, 17, 40}) {
        for (const bool add : {false, true}) {
          const Rows a = random_rows(DType::kF32, n * m, 1), b = random_rows(DType::kF32, n * k, 2),
                     before = random_rows(DType::kF32, m * k, 3);
          std::vector<float> columns(column_elements(n, k)), got(m * k), expected(m * k);
          pack_columns(DType::kF32, b.data(), each(n).data(), n, k, columns.data());
          std::copy_n(before.floats(), m * k, got.data());
          outer_product(panels_of(a, n, m).data(), m, columns.data(), k, n, add, got.data(), k);
          for (std::int64_t r = 0; r < m; ++r) {
            for (std::int64_t c = 0; c < k; ++c) {
              double sum = add ? before.at(r * k + c) : 0.0, size = std::abs(sum);
              for (std::int64_t i = 0; i < n; ++i) {
                const double term = static_cast<double>(a.at(i * m + r)) * b.at(i * k + c);
                sum += term;
                size += std::abs(term);
              }
              ASSERT_NEAR(got[r * k + c], sum, 1e-6 * size) << "m " << m << " k " << k << " n " << n;
            }
          }
        }
      }
    }
  });
}

TEST(RowProduct, HasTheBitsOfPanelsForAnyNumberOfRows) {
  for_every_target([] {
    for (const auto& [m, k] : kShapes) {
      for (const std::int64_t n : {1, 5, 6, 7, 12, 40}) {
        const Rows w = random_rows(DType::kF32, m * k, 1), in = random_rows(DType::kF32, n * k, 2);
        std::vector<float> got(n * m + 1, kNaN), products(panel_elements(n, m));
        row_product(in.floats(), n, k, panels_of(w, m, k).data(), m, got.data());
        EXPECT_TRUE(std::isnan(got.back())) << "written past its end";
        got.pop_back();
        panel_product(DType::kF32, w.data(), m, k, panels_of(in, n, k).data(), n, products.data());
        ASSERT_EQ(got, rows_of(products, n, m)) << "m " << m << " k " << k << " n " << n;
      }
    }
  });
}

}  // namespace
}  // namespace moesaic::kernels
