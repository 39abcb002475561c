#include "moesaic/nn/router_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace moesaic {
namespace {

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

double apart(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

TEST(RouterProduct, IsTheProductWithItsGradients) {
  for (const std::int64_t experts : {1, 3, 8, 16, 21, 64}) {
    const at::Tensor x = random({37, 50}, 1).requires_grad_(),
                     weight = random({experts, 50}, 2).requires_grad_();
    const at::Tensor g = random({37, experts}, 3), wide_x = x.detach().to(at::kDouble),
                     wide_weight = weight.detach().to(at::kDouble), wide_g = g.to(at::kDouble);
    const at::Tensor logits = router_product(x, weight);
    logits.backward(g);
    EXPECT_LE(apart(logits.detach(), at::mm(wide_x, wide_weight.t())), 1e-6) << experts << " experts";
    EXPECT_LE(apart(x.grad(), at::mm(wide_g, wide_weight)), 1e-6) << experts << " experts";
    EXPECT_LE(apart(weight.grad(), at::mm(wide_g.t(), wide_x)), 1e-6) << experts << " experts";
  }
}

TEST(RouterProduct, HasTheSameBitsHoweverManyTokensAndThreads) {
  const at::Tensor x = random({500, 48}, 1), weight = random({21, 48}, 2);
  const at::Tensor all = router_product(x, weight);
  for (const std::int64_t tokens : {1, 5, 6, 250}) {
    for (std::int64_t first = 0; first + tokens <= 500; first += 61) {
      EXPECT_TRUE(at::equal(router_product(x.narrow(0, first, tokens), weight), all.narrow(0, first, tokens)))
          << tokens << " tokens from " << first;
    }
  }
  EXPECT_EQ(router_product(x.narrow(0, 0, 0), weight).sizes(), (std::vector<std::int64_t>{0, 21}));
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(router_product(x, weight), all));
  at::set_num_threads(threads);
}

TEST(RouterProduct, TakesRowsThatDoNotLieSideBySide) {
  const at::Tensor x = random({48, 20}, 1).t(), weight = random({48, 9}, 2).t();
  EXPECT_TRUE(at::equal(router_product(x, weight), router_product(x.contiguous(), weight.contiguous())));
}

}  // namespace
}  // namespace moesaic
