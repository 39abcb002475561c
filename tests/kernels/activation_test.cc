#include "moesaic/kernels/activation.h"

#include <cmath>

#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

constexpr std::int64_t kRowCounts[] = {0, 1, 3};

class Activation : public testing::TestWithParam<DType> {
 protected:
  // The promise for fp32 (4 ulp, or `absolute` where that is more); at bf16, a neighbour.
  static void expect_close(DType dtype, float fast, float expected, double absolute = 0) {
    if (dtype == DType::kF32) {
      EXPECT_TRUE(ulps_apart(fast, expected) <= 4 || std::abs(fast - expected) <= absolute)
          << fast << ", expected " << expected;
    } else {
      EXPECT_TRUE(ulps_apart(fast, expected) <= 1 << 16 || std::abs(fast - expected) <= absolute)
          << fast << ", expected " << expected;
    }
  }
};

TEST_P(Activation, SwigluStaysWithinFourUlpOfTheOracle) {
  for_every_target([] {
    for (const std::int64_t rows : kRowCounts) {
      for (const std::int64_t width : kWidths) {
        const Rows in = random_rows(GetParam(), rows * 2 * width, 6);
        Rows fast(GetParam(), rows * width), expected(GetParam(), rows * width);
        swiglu(GetParam(), in.data(), rows, width, fast.data());
        reference::swiglu(GetParam(), in.data(), rows, width, expected.data());
        for (std::int64_t i = 0; i < fast.size(); ++i) {
          ASSERT_FALSE(std::isnan(fast.at(i)));
          expect_close(GetParam(), fast.at(i), expected.at(i));
        }
      }
    }
  });
}

TEST_P(Activation, SwigluBackwardStaysCloseToTheOracle) {
  for_every_target([] {
    for (const std::int64_t rows : kRowCounts) {
      for (const std::int64_t width : kWidths) {
        const Rows in = random_rows(GetParam(), rows * 2 * width, 7);
        const Rows dh = random_rows(GetParam(), rows * width, 8);
        Rows fast(GetParam(), rows * 2 * width), expected(GetParam(), rows * 2 * width);
        swiglu_backward(GetParam(), in.data(), dh.data(), rows, width, fast.data());
        reference::swiglu_backward(GetParam(), in.data(), dh.data(), rows, width, expected.data());
        for (std::int64_t p = 0; p < rows; ++p) {
          for (std::int64_t f = 0; f < width; ++f) {
            const std::int64_t gate = p * 2 * width + f, up = gate + width;
            ASSERT_FALSE(std::isnan(fast.at(gate)) || std::isnan(fast.at(up)));
            const double scale = std::abs(double{dh.at(p * width + f)} * double{in.at(up)});
            expect_close(GetParam(), fast.at(gate), expected.at(gate), 0x1p-21 * scale);
            expect_close(GetParam(), fast.at(up), expected.at(up));
          }
        }
      }
    }
  });
}

TEST(Activation, SwigluOfExtremeGates) {
  for_every_target([] {
    const std::vector<float> gates = {0, -0.0f, 88, -88, 104, -104, 1e30f, -1e30f, kInf, kNaN, 0.5f, -20};
    const auto n = static_cast<std::int64_t>(gates.size());
    std::vector<float> in(gates), h(n, kNaN);
    in.insert(in.end(), n, 1.0f);
    swiglu(DType::kF32, in.data(), 1, n, h.data());
    for (std::int64_t i = 0; i < n; ++i) {
      const double exact = double{gates[i]} / (1 + std::exp(-double{gates[i]}));
      if (std::isnan(gates[i])) {
        EXPECT_TRUE(std::isnan(h[i]));
      } else if (std::isinf(gates[i])) {
        EXPECT_EQ(h[i], kInf);
      } else {
        EXPECT_NEAR(h[i], exact, 3e-7 * std::abs(exact) + 1e-36) << "gate " << gates[i];
      }
    }
  });
}

TEST(Activation, SwigluBackwardKeepsItsPromiseWhereTheSlopeCrossesZero) {
  for_every_target([] {
    constexpr std::int64_t n = 4096;
    std::vector<float> in(2 * n, 1.0f), dh(n, 1.0f), fast(2 * n, kNaN), expected(2 * n, kNaN);
    for (std::int64_t f = 0; f < n; ++f) in[f] = -1.2785f + 1e-6f * float(f - n / 2);
    swiglu_backward(DType::kF32, in.data(), dh.data(), 1, n, fast.data());
    reference::swiglu_backward(DType::kF32, in.data(), dh.data(), 1, n, expected.data());
    for (std::int64_t f = 0; f < n; ++f) ASSERT_NEAR(fast[f], expected[f], 0x1p-21) << in[f];
  });
}

// The oracle itself against finite differences in fp64 of the formula.
TEST(Activation, SwigluBackwardIsTheDerivative) {
  const auto formula = [](double gate, double up) { return gate / (1 + std::exp(-gate)) * up; };
  for (const float gate : {-9.0f, -1.25f, 0.0f, 0.75f, 6.0f}) {
    const float in[] = {gate, 1.5f};
    const float dh = 2;
    float din[] = {kNaN, kNaN};
    reference::swiglu_backward(DType::kF32, in, &dh, 1, 1, din);
    const double step = 1e-5;
    EXPECT_NEAR(din[0], dh * (formula(gate + step, 1.5) - formula(gate - step, 1.5)) / (2 * step), 1e-6);
    EXPECT_NEAR(din[1], dh * formula(gate, 1), 1e-6);
  }
}

TEST(Activation, AnElementsBitsDoNotDependOnItsPlaceInTheRow) {
  for_every_target([] {
    const Rows in = random_rows(DType::kF32, 66, 9);
    std::vector<float> whole(33, kNaN);
    swiglu(DType::kF32, in.data(), 1, 33, whole.data());
    for (int f = 0; f < 33; ++f) {
      const float one[] = {in.at(f), in.at(33 + f)};
      float h = kNaN;
      swiglu(DType::kF32, one, 1, 1, &h);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(h), std::bit_cast<std::uint32_t>(whole[f])) << f;
    }
  });
}

TEST_P(Activation, ReluAndItsDerivativeEqualTheOracleBitForBit) {
  for_every_target([] {
    for (const std::int64_t rows : kRowCounts) {
      for (const std::int64_t width : kWidths) {
        const std::int64_t n = rows * width;
        Rows in = random_rows(GetParam(), n, 10);
        const Rows dh = random_rows(GetParam(), n, 11);
        Rows fast(GetParam(), n), expected(GetParam(), n), din(GetParam(), n), expected_din(GetParam(), n);
        relu(GetParam(), in.data(), rows, width, fast.data());
        reference::relu(GetParam(), in.data(), rows, width, expected.data());
        EXPECT_EQ(fast, expected);
        relu_backward(GetParam(), in.data(), dh.data(), rows, width, din.data());
        reference::relu_backward(GetParam(), in.data(), dh.data(), rows, width, expected_din.data());
        EXPECT_EQ(din, expected_din);
      }
    }
  });
}

TEST(Activation, ReluOfZeroHasNoSlopeAndANaNPassesThrough) {
  for_every_target([] {
    const std::vector<float> in = {2, 0, -0.0f, -1, kInf, -kInf, kNaN}, dh(7, 5);
    std::vector<float> h(7, -7), din(7, kNaN);
    relu(DType::kF32, in.data(), 1, 7, h.data());
    relu_backward(DType::kF32, in.data(), dh.data(), 1, 7, din.data());
    EXPECT_EQ(std::vector(h.begin(), h.end() - 1), (std::vector<float>{2, 0, 0, 0, kInf, 0}));
    EXPECT_TRUE(std::isnan(h.back()));
    EXPECT_EQ(std::vector(din.begin(), din.end() - 1), (std::vector<float>{5, 0, 0, 0, 5, 0}));
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, Activation, testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace moesaic::kernels
