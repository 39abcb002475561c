#include "moesaic/kernels/optimizer.h"

#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

constexpr AdamW kAdamW{.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 1};
constexpr Sgd kSgd{.learning_rate = 0.1, .momentum = 0.9};

// The gradient of step t = 1, 2, 3 in the two tests against torch.
std::vector<float> gradient_of_step(int t) { return {0.1f * float(t), -0.02f, 3.0f / float(t), 0}; }

// torch 2.13: AdamW([1, -2, 0.5, 0], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), three steps.
TEST(Optimizer, AdamWAgreesWithTorch) {
  for_every_target([] {
    std::vector<float> master = {1, -2, 0.5f, 0}, m(4), v(4);
    for (int t = 1; t <= 3; ++t) {
      AdamW options = kAdamW;
      options.step = t;
      adamw(options, 0.1, 1, 4, gradient_of_step(t).data(), master.data(), m.data(), v.data());
    }
    const float torch[] = {0.968007743f, -1.96403611f, 0.470260262f, 0};
    for (int i = 0; i < 4; ++i)
      EXPECT_LE(ulps_apart(master[i], torch[i]), 4) << master[i] << " vs " << torch[i];
  });
}

// torch 2.13: SGD([1, -2, 0.5, 0], lr=0.1, momentum=0.9, weight_decay=0.01), three steps.
TEST(Optimizer, SgdAgreesWithTorch) {
  for_every_target([] {
    std::vector<float> master = {1, -2, 0.5f, 0}, momentum(4);
    for (int t = 1; t <= 3; ++t) {
      sgd(kSgd, 0.01, 1, 4, gradient_of_step(t).data(), master.data(), momentum.data());
    }
    const float torch[] = {0.899352849f, -1.97757924f, -0.699512899f, 0};
    for (int i = 0; i < 4; ++i)
      EXPECT_LE(ulps_apart(master[i], torch[i]), 4) << master[i] << " vs " << torch[i];
  });
}

TEST(Optimizer, AdamWEqualsTheOracleBitForBit) {
  for_every_target([] {
    for (const std::int64_t n : kWidths) {
      const Rows gradient = random_rows(DType::kF32, n, 13);
      Rows master = random_rows(DType::kF32, n, 14), m = random_rows(DType::kF32, n, 15), v(DType::kF32, n);
      for (std::int64_t i = 0; i < n; ++i) v.set(i, m.at(i) * m.at(i) * 1.5f);
      Rows master2 = master, m2 = m, v2 = v;
      AdamW options = kAdamW;
      options.step = 1000;
      adamw(options, 0.1, 0.37f, n, gradient.floats(), master.floats(), m.floats(), v.floats());
      reference::adamw(options, 0.1, 0.37f, n, gradient.floats(), master2.floats(), m2.floats(), v2.floats());
      EXPECT_EQ(master, master2) << n;
      EXPECT_EQ(m, m2) << n;
      EXPECT_EQ(v, v2) << n;
    }
  });
}

TEST(Optimizer, SgdEqualsTheOracleBitForBit) {
  for_every_target([] {
    for (const std::int64_t n : kWidths) {
      const Rows gradient = random_rows(DType::kF32, n, 16);
      Rows master = random_rows(DType::kF32, n, 17), momentum = random_rows(DType::kF32, n, 18);
      Rows master2 = master, momentum2 = momentum;
      sgd(kSgd, 0.01, 0.37f, n, gradient.floats(), master.floats(), momentum.floats());
      reference::sgd(kSgd, 0.01, 0.37f, n, gradient.floats(), master2.floats(), momentum2.floats());
      EXPECT_EQ(master, master2) << n;
      EXPECT_EQ(momentum, momentum2) << n;
    }
  });
}

TEST(Optimizer, TheClippingFactorScalesTheGradient) {
  const float gradient = 8, quarter = 2;
  float master = 1, m = 0, v = 0, master2 = 1, m2 = 0, v2 = 0;
  adamw(kAdamW, 0, 0.25f, 1, &gradient, &master, &m, &v);
  adamw(kAdamW, 0, 1, 1, &quarter, &master2, &m2, &v2);
  EXPECT_EQ(master, master2);
  EXPECT_EQ(v, v2);
}

TEST(Optimizer, AdamWCountsStepsFromOne) {
  AdamW options = kAdamW;
  options.step = 0;
  EXPECT_THROW(adamw(options, 0, 1, 0, nullptr, nullptr, nullptr, nullptr), InvalidArgument);
}

// Squares of 2^-54 vanish beside a 1 unless four of them meet first.
TEST(SumOfSquares, AddsInTheDocumentedOrder) {
  std::vector<float> values(32, 0);
  values[0] = 1;
  for (const int i : {1, 9, 17, 25}) values[i] = 0x1p-27f;  // all in partial 1
  EXPECT_EQ(sum_of_squares(values.data(), 32), 1 + 0x1p-52);
  values.assign(8, 0x1p-27f);  // one in each partial, added to the 1 of partial 0 one by one
  values[0] = 1;
  EXPECT_EQ(sum_of_squares(values.data(), 8), 1);
  EXPECT_EQ(sum_of_squares(values.data(), 0), 0);
}

TEST(SumOfSquares, IsTakenInFp64) {
  const std::vector<float> values(3, 1e30f);
  EXPECT_NEAR(sum_of_squares(values.data(), 3), 3e60, 1e54);
}

}  // namespace
}  // namespace moesaic::kernels
