#include "moesaic/nn/products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace moesaic {
namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat)).to(at::kBFloat16);
}

// `got` is `exact` [fp64] rounded to bf16 once, but for the order of sums in fp32.
void expect_rounded_once(const at::Tensor& got, const at::Tensor& exact, const char* what) {
  ASSERT_EQ(got.scalar_type(), at::kBFloat16) << what;
  const at::Tensor allowed = exact.abs() * (1.001 / 256) + 1e-5 * exact.abs().max();
  EXPECT_TRUE(((got.to(at::kDouble) - exact).abs() <= allowed).all().item<bool>()) << what;
}

class Products : public testing::TestWithParam<std::int64_t> {};

TEST_P(Products, Bf16ProjectionsAndTheirGradientsAreRoundedOnce) {
  const std::int64_t rows = GetParam();
  const at::Tensor x = random({2, rows, 96}, 1).requires_grad_(),
                   weight = random({40, 96}, 2).requires_grad_();
  const at::Tensor g = random({2, rows, 40}, 3);
  const at::Tensor y = project(x, weight);
  y.backward(g);
  const auto flat = [](const at::Tensor& t) { return t.detach().to(at::kDouble).reshape({-1, t.size(-1)}); };
  expect_rounded_once(y.detach(), at::matmul(x.detach().to(at::kDouble), flat(weight).t()), "product");
  expect_rounded_once(x.grad(), at::matmul(g.to(at::kDouble), flat(weight)), "d_x");
  expect_rounded_once(weight.grad(), at::mm(flat(g).t(), flat(x)), "d_weight");
}

TEST_P(Products, Bf16MatricesAreRoundedOnce) {
  const at::Tensor a = random({GetParam(), 96}, 1), b = random({40, 96}, 2);
  at::Tensor out = at::empty({GetParam(), 40}, at::kBFloat16);
  multiply_into(out, a, b.t());
  expect_rounded_once(out, at::mm(a.to(at::kDouble), b.t().to(at::kDouble)), "product");
}

INSTANTIATE_TEST_SUITE_P(FewRowsAndMany, Products, testing::Values(1, 3, 64));

TEST(Products, Bf16AttentionIsThatOfFp32Rounded) {
  const at::Tensor q = random({1, 2, 32, 16}, 1), k = random({1, 2, 32, 16}, 2),
                   v = random({1, 2, 32, 16}, 3);
  const at::Tensor mask = at::ones({32, 32}, at::kBool).tril();
  const at::Tensor expected =
      at::scaled_dot_product_attention(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), mask);
  for (const at::Tensor& got : {attend(q, k, v, mask, false), attend(q, k, v, {}, true)}) {
    ASSERT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_LE((got.to(at::kFloat) - expected).abs().max().item<float>(), 0.02);
  }
}

}  // namespace
}  // namespace moesaic
