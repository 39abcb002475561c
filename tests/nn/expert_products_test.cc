#include "moesaic/nn/expert_products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace moesaic {
namespace {

// Five rows, three experts of which the last has none, a row without slots; widths that fill no vector.
ExpertInput some_input(DType dtype, bool gated) {
  return expert_input({dtype, gated, 3, 11, 7}, {0, 2, 3, 3, 5, 6}, {0, 1, 1, 0, 1, 0},
                      {0.5f, 0.25f, 1.0f, -0.5f, 0.75f, 2.0f});
}

void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  const at::Tensor wide = b.to(at::kDouble);
  EXPECT_LE((a.to(at::kDouble) - wide).abs().max().item<double>(),
            tolerance * wide.abs().max().item<double>());
}

TEST(ExpertProducts, TheLibraryIsTakenForManySlotsWhereVectorsAreWideAndPanelsAreNotAskedFor) {
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(library_slots(8, /*wide_vectors=*/true, /*only_panels=*/false), 128);
  EXPECT_EQ(library_slots(8, true, true), kNever);
  EXPECT_EQ(library_slots(8, false, false), kNever);
  EXPECT_EQ(library_slots(8, false, true), kNever);
}

// The library's way is chosen by the CPU (library_slots); here both run, whatever the CPU.
TEST(ExpertProducts, PanelsAndLibraryAgreeForwardAndBackward) {
  at::manual_seed(3);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool gated : {false, true}) {
      const auto type = dtype == DType::kF32 ? at::kFloat : at::kBFloat16;
      const double tolerance = dtype == DType::kF32 ? 1e-5 : 2e-2;
      const ExpertInput input = some_input(dtype, gated);
      const at::Tensor rows = at::randn({5, 11}).to(type), g = at::randn({5, 11}).to(type);
      const at::Tensor w_in = at::randn({3, input.shape.hidden_width(), 11}).to(type);
      const at::Tensor w_out = at::randn({3, 11, 7}).to(type);
      std::vector<ExpertForward> forward;
      std::vector<ExpertBackward> backward;
      for (const ProductKind kind : {ProductKind::kPanels, ProductKind::kLibrary}) {
        forward.push_back(experts_forward(kind, input, rows.data_ptr(), w_in, w_out, /*keep=*/true));
        backward.push_back(
            experts_backward(kind, input, g.data_ptr(), rows.data_ptr(), forward.back().before, w_in, w_out));
      }
      expect_close(forward[0].outputs, forward[1].outputs, tolerance);
      expect_close(backward[0].d_inputs, backward[1].d_inputs, tolerance);
      expect_close(backward[0].d_w_in, backward[1].d_w_in, tolerance);
      expect_close(backward[0].d_w_out, backward[1].d_w_out, tolerance);
      for (const ExpertBackward& b : backward) {
        EXPECT_EQ(b.d_w_in[2].abs().max().item<double>(), 0.0);
        EXPECT_EQ(b.d_w_out[2].abs().max().item<double>(), 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
