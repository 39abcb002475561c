// The MoE layer's experts on rows that travel in chunks and in the background: the bits of the plain way, and
// what runs while rows are under way, by the order of events.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "moesaic/core/error.h"
#include "moesaic/nn/feed_forward.h"
#include "moesaic/nn/moe_experts.h"
#include "tests/comm/held_transport.h"
#include "tests/nn/model.h"

namespace moesaic::testing {
namespace {

constexpr std::int64_t kWidth = 5, kExpertWidth = 6, kChoices = 3;

// Ranks have 9, 0, 4, 13, ... tokens. Some choices are dropped; expert 1 is chosen by nobody.
std::int64_t tokens_of(int rank) { return std::array{9, 0, 4, 13, 7, 1}.at(static_cast<std::size_t>(rank)); }

RoutingPlan plan_of(int rank, int num_experts) {
  RoutingPlan plan;
  plan.num_tokens = tokens_of(rank);
  plan.num_choices = kChoices;
  plan.num_experts = num_experts;
  for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
    const auto key = random_key(static_cast<std::uint64_t>(rank * 100 + t), "plan");
    for (int k = 0; k < kChoices; ++k) {
      const auto e = static_cast<std::int32_t>(random_permutation(key, num_experts, k));
      const bool dropped = e == 1 || random_bits(key, static_cast<std::uint64_t>(k), 1) % 5 == 0;
      plan.expert_ids.push_back(dropped ? -1 : e);
      plan.weights.push_back(0.0f);
    }
  }
  return plan;
}

struct How {
  at::ScalarType dtype = at::kFloat;
  Activation activation = Activation::kSwiGlu;
  DispatchOptions dispatch = {};
  bool overlap = true;
  bool shared = false;
  bool fp32_sums = false;
};

// y and the gradients of x, weights, w_in, w_out (and of the shared experts' matrix).
using Outcome = std::vector<at::Tensor>;

Outcome run(Communicator& group, const How& setup) {
  at::set_num_threads(1);
  const int num_experts = 2 * group.size() + 1;
  const auto placement = Placement::contiguous(num_experts, group.size(), group.size());
  const auto local = std::ssize(placement.experts_of(group.rank()));
  const auto plan = plan_of(group.rank(), num_experts);
  const auto draw = [&](at::IntArrayRef shape, const std::string& name) {
    return normal(shape, fmt::format("{} {}", name, group.rank()), 0.5).to(setup.dtype).requires_grad_();
  };
  const std::int64_t hidden = setup.activation == Activation::kSwiGlu ? 2 * kExpertWidth : kExpertWidth;
  const at::Tensor x = draw({plan.num_tokens, kWidth}, "x"), w_in = draw({local, hidden, kWidth}, "in"),
                   w_out = draw({local, kWidth, kExpertWidth}, "out"),
                   w_shared = draw({kWidth, kWidth}, "shared"),
                   g = draw({plan.num_tokens, kWidth}, "g").detach(),
                   weights = normal({plan.num_tokens, kChoices}, "w").abs().requires_grad_();
  const ExpertRoute route{&group, &placement, setup.dispatch, setup.overlap, setup.fp32_sums};
  at::Tensor shared;
  const auto meanwhile = [&] { shared = at::mm(x, w_shared); };
  at::Tensor y = moe_experts(route, setup.activation, plan, x, weights, w_in, w_out, nullptr,
                             setup.shared ? std::function<void()>(meanwhile) : nullptr);
  if (setup.shared) y = y + shared;
  torch::autograd::backward({y}, {g});
  Outcome outcome{y.detach(), x.grad(), weights.grad(), w_in.grad(), w_out.grad()};
  if (setup.shared) outcome.push_back(w_shared.grad());
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& expected, const std::string& what) {
  constexpr std::array kNames{"y", "x", "weights", "w_in", "w_out", "shared"};
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i], expected[i])) << what << ": " << kNames[i];
  }
}

void check(Communicator& group, How setup) {
  How plain = setup;
  plain.overlap = false;
  plain.dispatch = {};
  const Outcome expected = run(group, plain);
  for (const Route route : kRoutes) {
    for (const std::int64_t chunks : {1, 2, 3, 7, 20}) {
      setup.dispatch = {.route = route, .chunks = chunks};
      expect_same(run(group, setup), expected, fmt::format("{} in {} chunks", name_of(route), chunks));
    }
  }
  setup.dispatch = {.route = std::nullopt, .chunks = std::nullopt};
  expect_same(run(group, setup), expected, "as chosen");
}

TEST(MoeChunks, GiveTheBitsOfOneForwardAndBackwardByEveryRoute) {
  for (const std::vector<int>& nodes :
       std::vector<std::vector<int>>{{0}, {0, 1}, {0, 1, 1}, {0, 0, 1, 1}, {0, 0, 1, 1, 1, 2}}) {
    const Topology topology = Topology::from_nodes(nodes);
    SCOPED_TRACE(describe(topology));
    EXPECT_NO_THROW(run_world(topology, [](Communicator& group) {
      check(group, {});
      check(group, {.dtype = at::kBFloat16, .shared = true});
      check(group, {.dtype = at::kBFloat16, .fp32_sums = true});
      check(group, {.activation = Activation::kRelu, .shared = true});
    }));
  }
}

TEST(MoeChunks, TheCaseHasWhatItClaims) {
  // On three ranks: an expert without rows, a rank without tokens, dropped choices.
  bool dropped = false;
  std::vector<int> rows(7, 0);
  for (int rank = 0; rank < 3; ++rank) {
    for (const std::int32_t e : plan_of(rank, 7).expert_ids) {
      dropped |= e < 0;
      if (e >= 0) ++rows[static_cast<std::size_t>(e)];
    }
  }
  EXPECT_TRUE(dropped);
  EXPECT_EQ(rows[1], 0);
  EXPECT_GT(rows[0], 0);
  run_world(Topology::one_node(3), [](Communicator& group) {
    const Outcome outcome = run(group, {.dispatch = {.chunks = 3}});
    if (group.rank() != 0) return;
    EXPECT_EQ(outcome[3][1].abs().max().item<float>(), 0.0f);
  });
}

TEST(MoeChunks, ALayerThatIsNotDifferentiatedGivesTheSameOutputs) {
  run_world(Topology::uniform(4, 2), [](Communicator& group) {
    const at::NoGradGuard no_grad;
    const auto placement = Placement::contiguous(9, 4, 4);
    const auto plan = plan_of(group.rank(), 9);
    const auto local = std::ssize(placement.experts_of(group.rank()));
    const at::Tensor x = normal({plan.num_tokens, kWidth}, "x"),
                     w_in = normal({local, kExpertWidth, kWidth}, "in"),
                     w_out = normal({local, kWidth, kExpertWidth}, "out"),
                     weights = normal({plan.num_tokens, kChoices}, "w");
    const auto y = [&](std::int64_t chunks) {
      return moe_experts({&group, &placement, {.chunks = chunks}}, Activation::kRelu, plan, x, weights, w_in,
                         w_out);
    };
    EXPECT_TRUE(at::equal(y(4), y(1)));
  });
}

TEST(MoeChunks, TwoLayersUnderWayKeepTheirOwnRows) {
  run_world(Topology::uniform(2, 1), [](Communicator& group) {
    const How three{.dispatch = {.chunks = 3}, .shared = true}, two{.dispatch = {.chunks = 2}};
    const Outcome a = run(group, three), b = run(group, two);
    expect_same(run(group, three), a, "again");
    expect_same(run(group, two), b, "again");
  });
}

// ---- the order of events ----

// 7 tokens of each rank for both ranks, in 3 chunks of 2, 2 and 3: a chunk is known by its bytes.
constexpr std::int64_t kTokens = 7;
constexpr std::size_t kRowBytes = kWidth * sizeof(float);

struct Layer {
  Placement placement = Placement::contiguous(2, 2);
  RoutingPlan plan;
  at::Tensor x = normal({kTokens, kWidth}, "x").requires_grad_(),
             weights = at::ones({kTokens, 2}).requires_grad_(),
             w_in = normal({1, kExpertWidth, kWidth}, "in").requires_grad_(),
             w_out = normal({1, kWidth, kExpertWidth}, "out").requires_grad_(),
             w_shared = normal({kWidth, kWidth}, "shared").requires_grad_();
  Layer() {
    plan.num_tokens = kTokens;
    plan.num_choices = plan.num_experts = 2;
    for (std::int64_t t = 0; t < kTokens; ++t) plan.expert_ids.insert(plan.expert_ids.end(), {0, 1});
    plan.weights.assign(2 * kTokens, 1.0f);
  }
  at::Tensor operator()(Communicator& group, std::int64_t chunks, const std::function<void()>& meanwhile) {
    return moe_experts({&group, &placement, {.chunks = chunks}}, Activation::kRelu, plan, x, weights, w_in,
                       w_out, nullptr, meanwhile);
  }
};

// Waits as long as it takes; a rank that hangs instead ends the test with PeerLost.
constexpr std::chrono::milliseconds kPatience{20'000};

// Counts spans and tells of each.
class Listener final : public Tracer {
 public:
  std::function<void(const SpanInfo&)> heard;
  void begin(const SpanInfo& span) override {
    if (span.lane == kComputeLane && heard) heard(span);
  }
  void end(const SpanInfo&) noexcept override {}
};

TEST(MoeOverlap, ExpertsWorkOnChunksAndSendSumsHomeBeforeTheLastChunkIsInForwardAndBackward) {
  std::atomic<int> before_the_last = 0;
  EXPECT_NO_THROW(run_inproc(2, [&](Transport& transport) {
    at::set_num_threads(1);
    // Sums of the last chunk are as large, but they come after it.
    HeldTransport forward(transport, [](int, std::size_t bytes) { return bytes == 3 * kRowBytes; });
    std::atomic<bool> is_backward = false;
    HeldTransport backward(forward,
                           [&](int, std::size_t bytes) { return is_backward && bytes == 3 * kRowBytes; });
    int sums = 0;
    Listener listener;
    listener.heard = [&](const SpanInfo& span) {
      if (span.name != "combine") return;
      HeldTransport& held = is_backward ? backward : forward;
      if (!held.released()) ++before_the_last;
      if (++sums == 2) held.release();  // of the second chunk
    };
    Communicator world(backward, Topology::uniform(2, 1), kPatience);
    Communicator group =
        world.split_all(1, {.tracer = &listener, .phase = Phase::kExchange, .lane = "exchange"});
    Layer layer;
    const at::Tensor y = layer(group, 3, {});
    is_backward = true;
    sums = 0;
    torch::autograd::backward({y.sum()}, {});
  }));
  EXPECT_EQ(before_the_last, 2 * 2 * 2);
}

TEST(MoeOverlap, WhatRunsMeanwhileRunsBeforeAnyRowIsInForwardAndBackward) {
  for (const std::int64_t chunks : {1, 3}) {
    SCOPED_TRACE(fmt::format("{} chunks", chunks));
    std::atomic<int> ran_forward = 0, ran_backward = 0;
    EXPECT_NO_THROW(run_inproc(2, [&](Transport& transport) {
      at::set_num_threads(1);
      const auto is_rows = [](int, std::size_t bytes) {
        return bytes == 2 * kRowBytes || bytes == 3 * kRowBytes || bytes == 7 * kRowBytes;
      };
      HeldTransport forward(transport, is_rows);
      std::atomic<bool> is_backward = false;
      HeldTransport backward(
          forward, [&](int peer, std::size_t bytes) { return is_backward && is_rows(peer, bytes); });
      Communicator group(backward, Topology::uniform(2, 1), kPatience);
      Layer layer;
      at::Tensor shared;
      at::Tensor y = layer(group, chunks, [&] {
        shared = at::mm(layer.x, layer.w_shared);
        ++ran_forward;
        forward.release();
      });
      y = y + shared;
      is_backward = true;
      layer.w_shared.register_hook([&](const at::Tensor&) {
        ++ran_backward;
        backward.release();
      });
      torch::autograd::backward({y.sum()}, {});
    }));
    EXPECT_EQ(ran_forward, 2);
    EXPECT_EQ(ran_backward, 2);
  }
}

// ---- losses ----

TEST(MoeOverlap, ARankThatFailsBetweenChunksIsLostToTheOthersAndNobodyHangs) {
  for (const bool in_backward : {false, true}) {
    SCOPED_TRACE(in_backward ? "backward" : "forward");
    std::atomic<int> lost = 0;
    EXPECT_THROW(run_inproc(2,
                            [&](Transport& transport) {
                              at::set_num_threads(1);
                              Listener listener;
                              Communicator world(transport, Topology::uniform(2, 1), kPatience);
                              Communicator group = world.split_all(
                                  1, {.tracer = &listener, .phase = Phase::kExchange, .lane = "exchange"});
                              int sums = 0;
                              listener.heard = [&](const SpanInfo& span) {
                                if (group.rank() != 1 || span.name != "combine") return;
                                if (++sums == (in_backward ? 5 : 2)) throw NonFinite("an expert gave nan");
                              };
                              Layer layer;
                              try {
                                const at::Tensor y = layer(group, 3, {});
                                torch::autograd::backward({y.sum()}, {});
                              } catch (const PeerLost& e) {
                                lost += e.rank() == 1;
                                throw;
                              }
                            }),
                 NonFinite);
    EXPECT_EQ(lost, 1);
  }
}

}  // namespace
}  // namespace moesaic::testing
