// Sums that travel home in fp32 while the model computes in bf16.
#include <gtest/gtest.h>

#include <mutex>

#include "moesaic/nn/moe_experts.h"
#include "tests/nn/model.h"

namespace moesaic::testing {
namespace {

constexpr std::int64_t kWidth = 33, kExpertWidth = 6, kTokens = 7;

// Every token goes to all experts, of which each rank has two. Weights are powers of two, and sums of a few
// bf16 numbers fit into fp32: so those that are rounded once, at the end, do not depend on their order.
RoutingPlan to_all(int num_experts) {
  RoutingPlan plan;
  plan.num_tokens = kTokens;
  plan.num_choices = plan.num_experts = num_experts;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (int e = 0; e < num_experts; ++e) plan.expert_ids.push_back(e);
  }
  plan.weights.assign(plan.expert_ids.size(), 0.0f);
  return plan;
}

struct Result {
  at::Tensor y, d_x;
  std::int64_t crossed = 0;  // bytes that this rank sent to other nodes
};

// By `group` of those ranks that together have all experts.
Result run(Communicator& group, int source, int num_experts, DispatchOptions dispatch, bool fp32_sums) {
  at::set_num_threads(1);
  const auto placement = Placement::contiguous(num_experts, group.size(), group.size());
  const auto experts = placement.experts_of(group.rank());
  const auto draw = [&](at::IntArrayRef shape, const std::string& name) {
    return normal(shape, name, 0.5).to(at::kBFloat16);
  };
  const auto own = [&](const at::Tensor& of_all) {
    return of_all.narrow(0, experts.front(), std::ssize(experts)).contiguous();
  };
  const at::Tensor w_in = own(draw({num_experts, kExpertWidth, kWidth}, "in")),
                   w_out = own(draw({num_experts, kWidth, kExpertWidth}, "out")),
                   g = draw({kTokens, kWidth}, fmt::format("g {}", source)),
                   x = draw({kTokens, kWidth}, fmt::format("x {}", source)).requires_grad_();
  const at::Tensor weights = at::ones({kTokens, num_experts});
  weights.slice(1, 1, num_experts, 2).fill_(0.5);
  const std::int64_t before = group.traffic().inter_node_bytes;
  const at::Tensor y =
      moe_experts({.group = &group, .placement = &placement, .dispatch = dispatch, .fp32_sums = fp32_sums},
                  Activation::kRelu, to_all(num_experts), x, weights, w_in, w_out);
  torch::autograd::backward({y}, {g});
  return {y.detach(), x.grad(), group.traffic().inter_node_bytes - before};
}

TEST(MoeWire, InFp32GivesTokensAndGradientsTheBitsOfOneRankAndElseDoesNot) {
  for (const std::vector<int>& nodes : std::vector<std::vector<int>>{{0, 1}, {0, 0, 1, 1}, {0, 1, 1, 2}}) {
    const Topology topology = Topology::from_nodes(nodes);
    SCOPED_TRACE(describe(topology));
    bool y_was_rounded = false, d_x_was_rounded = false;
    std::mutex mutex;
    EXPECT_NO_THROW(run_world(topology, [&](Communicator& world) {
      auto alone = world.split(std::vector<int>{world.rank()}, 1);
      const int num_experts = 2 * world.size();
      const Result expected = run(alone, world.rank(), num_experts, {}, false);
      const Result same = run(alone, world.rank(), num_experts, {}, true);
      EXPECT_TRUE(at::equal(same.y, expected.y) && at::equal(same.d_x, expected.d_x)) << "alone";
      for (const Route route : kRoutes) {
        for (const std::int64_t chunks : {1, 3}) {
          const DispatchOptions dispatch{.route = route, .chunks = chunks};
          const Result exact = run(world, world.rank(), num_experts, dispatch, true);
          EXPECT_TRUE(at::equal(exact.y, expected.y)) << name_of(route) << ", " << chunks << " chunks";
          EXPECT_TRUE(at::equal(exact.d_x, expected.d_x)) << name_of(route) << ", " << chunks << " chunks";
          const Result rounded = run(world, world.rank(), num_experts, dispatch, false);
          const std::lock_guard lock(mutex);
          y_was_rounded |= !at::equal(rounded.y, expected.y);
          d_x_was_rounded |= !at::equal(rounded.d_x, expected.d_x);
        }
      }
    }));
    EXPECT_TRUE(y_was_rounded && d_x_was_rounded);
  }
}

TEST(MoeWire, InFp32SendsTwiceTheBytesOfSumsAndNothingElseMore) {
  run_world(Topology::uniform(2, 1), [](Communicator& world) {
    const Result rounded = run(world, world.rank(), 4, {}, false),
                 exact = run(world, world.rank(), 4, {}, true);
    // Sums for the other rank's tokens, and those of their gradients.
    EXPECT_EQ(exact.crossed - rounded.crossed, 2 * kTokens * kWidth * 2);
  });
}

}  // namespace
}  // namespace moesaic::testing
