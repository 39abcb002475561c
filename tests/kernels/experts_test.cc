#include "moesaic/kernels/experts.h"

#include <atomic>
#include <numeric>
#include <thread>

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

void one_after_another(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < n; ++i) task(i);
}
void last_first(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = n; i-- > 0;) task(i);
}
void on_three_threads(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  std::atomic<std::int64_t> next{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i = next++; i < n; i = next++) task(i);
    });
  }
}

// Whether the instruction set in use (see for_every_target) multiplies and adds with one rounding.
bool target_fuses(std::int64_t target) { return target == HWY_AVX2; }

struct Problem {
  ExpertShape shape;
  std::vector<std::int64_t> begin{0}, row;
  Rows rows, g, w_in, w_out;
  std::vector<float> slot_weight;

  Problem(ExpertShape s, const std::vector<std::int64_t>& slots_of_expert, std::int64_t num_rows)
      : shape(s),
        rows(random_rows(s.dtype, num_rows * s.width, 1)),
        g(random_rows(s.dtype, num_rows * s.width, 2)),
        w_in(random_rows(s.dtype, s.num_experts * s.hidden_width() * s.width, 3)),
        w_out(random_rows(s.dtype, s.num_experts * s.width * s.expert_width, 4)) {
    for (const std::int64_t n : slots_of_expert) begin.push_back(begin.back() + n);
    const std::uint64_t key = random_key(5, "slots");
    for (std::int64_t i = 0; i < begin.back(); ++i) {
      row.push_back(static_cast<std::int64_t>(random_bits(key, i) % num_rows));
      slot_weight.push_back(random_normal(key, i, 1));
    }
  }

  ExpertSlots slots() const { return {begin.data(), row.data()}; }
  std::int64_t num_slots() const { return begin.back(); }
  Rows new_outputs() const { return Rows(shape.dtype, num_slots() * shape.width); }
};

struct Gradients {
  Rows d_inputs, d_w_in, d_w_out;
  explicit Gradients(const Problem& p)
      : d_inputs(p.new_outputs()),
        d_w_in(p.shape.dtype, p.w_in.size()),
        d_w_out(p.shape.dtype, p.w_out.size()) {}
  ExpertGradients pointers() { return {d_inputs.data(), d_w_in.data(), d_w_out.data()}; }
  bool operator==(const Gradients&) const = default;
};

Rows forward(const Problem& p, Rows* before, const RunTasks& run) {
  Rows outputs = p.new_outputs();
  if (before != nullptr) *before = Rows(p.shape.dtype, before_elements(p.shape, p.slots()));
  experts_forward(p.shape, p.slots(), p.rows.data(), p.w_in.data(), p.w_out.data(),
                  before == nullptr ? nullptr : before->data(), outputs.data(), run);
  return outputs;
}

Gradients backward(const Problem& p, const RunTasks& run) {
  Rows before(p.shape.dtype, 0);
  forward(p, &before, run);
  Gradients result(p);
  experts_backward(p.shape, p.slots(), p.g.data(), p.slot_weight.data(), p.rows.data(), before.data(),
                   p.w_in.data(), p.w_out.data(), result.pointers(), run);
  return result;
}

// Part by part: each slot in part s * 7 % parts of its expert's.
Gradients backward_in_parts(const Problem& p, std::int64_t parts) {
  Gradients result(p);
  const ExpertShape& shape = p.shape;
  Rows h(shape.dtype, p.num_slots() * shape.expert_width),
      d_before(shape.dtype, p.num_slots() * shape.hidden_width());
  std::vector<std::int64_t> place(p.row.size());
  std::int64_t done = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    Problem some = p;
    some.begin = {0};
    some.row.clear(), some.slot_weight.clear();
    std::vector<std::int64_t> slots;
    for (std::int64_t e = 0; e < shape.num_experts; ++e) {
      for (auto s = p.begin[static_cast<std::size_t>(e)]; s < p.begin[static_cast<std::size_t>(e) + 1]; ++s) {
        if (s * 7 % parts != part) continue;
        place[static_cast<std::size_t>(s)] = done + std::ssize(slots);
        slots.push_back(s);
        some.row.push_back(p.row[static_cast<std::size_t>(s)]);
        some.slot_weight.push_back(p.slot_weight[static_cast<std::size_t>(s)]);
      }
      some.begin.push_back(std::ssize(slots));
    }
    Rows before(shape.dtype, 0), d_inputs = some.new_outputs();
    forward(some, &before, one_after_another);
    const auto from = [&](Rows& all, std::int64_t width) {
      return static_cast<std::uint8_t*>(all.data()) + done * width * size_of(shape.dtype);
    };
    experts_backward_slots(
        shape, some.slots(), p.g.data(), some.slot_weight.data(), before.data(), p.w_in.data(),
        p.w_out.data(), {d_inputs.data(), from(h, shape.expert_width), from(d_before, shape.hidden_width())},
        last_first);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      for (std::int64_t d = 0; d < shape.width; ++d) {
        result.d_inputs.set(slots[i] * shape.width + d,
                            d_inputs.at(static_cast<std::int64_t>(i) * shape.width + d));
      }
    }
    done += std::ssize(slots);
  }
  experts_backward_weights(shape, p.slots(), place.data(), p.g.data(), p.slot_weight.data(), p.rows.data(),
                           h.data(), d_before.data(), result.d_w_in.data(), result.d_w_out.data(),
                           last_first);
  return result;
}

class Experts : public testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  ExpertShape shape(std::int64_t num_experts, std::int64_t width, std::int64_t expert_width) const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), num_experts, width, expert_width};
  }
  // Row counts about every edge of a panel; widths that do and do not divide into tiles and columns.
  std::vector<Problem> problems() const {
    std::vector<Problem> result;
    result.emplace_back(shape(6, 16, 16), std::vector<std::int64_t>{0, 1, 8, 9, 16, 17}, 11);
    result.emplace_back(shape(3, 23, 5), std::vector<std::int64_t>{35, 0, 24}, 7);
    result.emplace_back(shape(2, 1, 1), std::vector<std::int64_t>{3, 4}, 2);
    result.emplace_back(shape(1, 300, 18), std::vector<std::int64_t>{21}, 5);
    // Several passes: by all threads together, and each expert alone.
    result.emplace_back(shape(2, 7, 9), std::vector<std::int64_t>{150, 1030}, 40);
    result.emplace_back(shape(9, 4, 3), std::vector<std::int64_t>(9, 530), 40);
    result.emplace_back(shape(2, 4, 4), std::vector<std::int64_t>{0, 0}, 1);
    return result;
  }
};

TEST_P(Experts, ForwardEqualsTheOracleBitForBitOnEveryInstructionSet) {
  for (const Problem& p : problems()) {
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      hwy::SetSupportedTargetsForTest(target);
      Rows expected = p.new_outputs();
      reference::experts_forward(p.shape, p.slots(), p.rows.data(), p.w_in.data(), p.w_out.data(),
                                 expected.data(), target_fuses(target));
      EXPECT_EQ(forward(p, nullptr, one_after_another), expected) << p.shape.width << " wide";
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(Experts, BackwardEqualsTheOracleBitForBitOnEveryInstructionSet) {
  for (const Problem& p : problems()) {
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      hwy::SetSupportedTargetsForTest(target);
      Gradients expected(p);
      reference::experts_backward(p.shape, p.slots(), p.g.data(), p.slot_weight.data(), p.rows.data(),
                                  p.w_in.data(), p.w_out.data(), expected.pointers(), target_fuses(target));
      const Gradients got = backward(p, one_after_another);
      EXPECT_EQ(got.d_inputs, expected.d_inputs) << p.shape.width << " wide";
      EXPECT_EQ(got.d_w_in, expected.d_w_in) << p.shape.width << " wide";
      EXPECT_EQ(got.d_w_out, expected.d_w_out) << p.shape.width << " wide";
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(Experts, BackwardPartByPartHasTheBitsOfTheWholeOnEveryInstructionSet) {
  for (const Problem& p : problems()) {
    for_every_target([&] {
      const Gradients whole = backward(p, one_after_another);
      for (const std::int64_t parts : {1, 2, 5}) {
        const Gradients got = backward_in_parts(p, parts);
        EXPECT_EQ(got.d_inputs, whole.d_inputs) << parts << " parts, " << p.shape.width << " wide";
        EXPECT_EQ(got.d_w_in, whole.d_w_in) << parts << " parts, " << p.shape.width << " wide";
        EXPECT_EQ(got.d_w_out, whole.d_w_out) << parts << " parts, " << p.shape.width << " wide";
      }
    });
  }
}

TEST_P(Experts, NeitherTheOrderOfTasksNorThreadsChangeAnything) {
  for (const Problem& p : problems()) {
    for (const auto& run : {last_first, on_three_threads}) {
      EXPECT_EQ(forward(p, nullptr, one_after_another), forward(p, nullptr, run));
      EXPECT_EQ(backward(p, one_after_another), backward(p, run));
    }
  }
}

TEST_P(Experts, KeepingPreActivationsChangesNoBit) {
  for (const Problem& p : problems()) {
    Rows before(p.shape.dtype, 0);
    EXPECT_EQ(forward(p, nullptr, one_after_another), forward(p, &before, one_after_another));
  }
}

TEST_P(Experts, TheBitsOfARowDoNotDependOnTheOthers) {
  const Problem together(shape(1, 24, 12), {40}, 40);
  const Rows all = forward(together, nullptr, one_after_another);
  for (const std::int64_t s : {0, 7, 15, 16, 39}) {
    Problem alone = together;
    alone.begin = {0, 1};
    alone.row = {together.row[static_cast<std::size_t>(s)]};
    const Rows one = forward(alone, nullptr, one_after_another);
    for (std::int64_t d = 0; d < 24; ++d) EXPECT_EQ(one.at(d), all.at(s * 24 + d)) << "slot " << s;
  }
}

TEST_P(Experts, WeightsOfAnExpertWithoutRowsGetGradientsOfExactlyZero) {
  Problem p(shape(3, 16, 8), {5, 0, 2}, 4);
  for (std::int64_t i = 0; i < p.w_in.size() / 3; ++i) p.w_in.set(p.w_in.size() / 3 + i, kNaN);  // never read
  const Gradients got = backward(p, one_after_another);
  for (std::int64_t i = 0; i < p.w_in.size() / 3; ++i) ASSERT_EQ(got.d_w_in.at(p.w_in.size() / 3 + i), 0);
  for (std::int64_t i = 0; i < got.d_w_in.size(); ++i) ASSERT_FALSE(std::isnan(got.d_w_in.at(i)));
  for (std::int64_t i = 0; i < p.w_out.size() / 3; ++i) ASSERT_EQ(got.d_w_out.at(p.w_out.size() / 3 + i), 0);
}

TEST_P(Experts, ARowThatIsNotFiniteStaysAmongItself) {
  Problem p(shape(1, 16, 8), {20}, 20);
  std::iota(p.row.begin(), p.row.end(), 0);
  for (std::int64_t d = 0; d < 16; ++d) p.rows.set(3 * 16 + d, kInf);
  const Rows got = forward(p, nullptr, one_after_another);
  for (std::int64_t s = 0; s < 20; ++s) {
    bool finite = true;
    for (std::int64_t d = 0; d < 16; ++d) finite = finite && std::isfinite(got.at(s * 16 + d));
    EXPECT_EQ(finite, s != 3) << "slot " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Experts,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16), testing::Bool()),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "SwiGlu" : "Relu");
                         });

TEST(ExpertsDType, IsRefusedByName) {
  try {
    experts_forward({DType::kI32, true, 0, 1, 1}, {nullptr, nullptr}, nullptr, nullptr, nullptr, nullptr,
                    nullptr, one_after_another);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("experts_forward: got dtype int32, expected fp32 or bf16"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace moesaic::kernels
