#include "moesaic/kernels/few_rows.h"

#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/kernels/panels.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

// out [n,m] by panels, whose chains the header promises.
std::vector<float> by_panels(const Rows& w, std::int64_t m, std::int64_t k, const Rows& in, std::int64_t n) {
  std::vector<std::int64_t> row(n);
  std::iota(row.begin(), row.end(), 0);
  std::vector<float> panels(panel_elements(n, k)), products(panel_elements(n, m)), out(n * m);
  pack_panels(DType::kF32, in.data(), row.data(), nullptr, n, k, panels.data());
  panel_product(w.dtype, w.data(), m, k, panels.data(), n, products.data());
  unpack_panels(DType::kF32, products.data(), n, m, out.data());
  return out;
}

void expect_the_bits_of_panels(DType dtype, std::int64_t m, std::int64_t k, std::int64_t n) {
  const Rows w = random_rows(dtype, m * k, 1), in = random_rows(DType::kF32, n * k, 2);
  const std::vector<float> expected = by_panels(w, m, k, in, n);
  for (const void* next : {static_cast<const void*>(nullptr), w.data()}) {
    std::vector<float> out(n * m + 1, kNaN);
    few_rows_product(dtype, w.data(), m, k, in.floats(), n, out.data(), next);
    EXPECT_TRUE(std::isnan(out.back())) << "written past its end";
    out.pop_back();
    ASSERT_EQ(out, expected) << name_of(dtype) << " m " << m << " k " << k << " n " << n;
  }
}

TEST(FewRows, HasTheBitsOfPanelsAtEveryShape) {
  for_every_target([] {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::int64_t m : {1, 7, 8, 9, 33, 64}) {
        for (const std::int64_t k : {1, 15, 16, 31, 32, 50, 128}) {
          for (std::int64_t n = 1; n <= kFewRows; ++n) expect_the_bits_of_panels(dtype, m, k, n);
        }
      }
    }
  });
}

TEST(FewRows, HasTheBitsOfPanelsForRowsOfManyPages) {
  for_every_target([] {
    for (const std::int64_t k : {1100, 2100, 4200}) expect_the_bits_of_panels(DType::kF32, 40, k, 2);
  });
}

TEST(FewRows, RefusesMoreRowsThanAFew) {
  try {
    few_rows_product(DType::kF32, nullptr, 1, 1, nullptr, 9, nullptr);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("few_rows_product: got 9 rows, expected 1 to 8"), std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace moesaic::kernels
