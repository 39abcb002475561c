// The gradients of an expert's weights add up over its slots, in order; those of its inputs do not. So a pass
// over some of the slots has two halves: slots by the group, then columns of both gradients. An expert with a
// large part of all slots is taken by all threads, half by half; any other is one task.
#include <algorithm>
#include <numeric>

#include "moesaic/kernels/experts_slots.h"

namespace moesaic::kernels {
namespace {

// How many slots a pass takes, and a group of them. Every pass reads and writes the weights' gradients; every
// group reads the weights.
struct PassSize {
  std::int64_t slots, group;
};
constexpr PassSize kAlone{512, 512}, kTogether{1024, 128};
// Columns of a gradient that are a task: a multiple of 16.
constexpr std::int64_t kColumns = 64;
// An expert with more than this part of the slots would hold up the other threads.
constexpr std::int64_t kLargePart = 8;

struct Arguments {
  const ExpertShape& shape;
  const ExpertSlots& slots;
  const void* g;
  const float* slot_weight;
  const void *rows, *before, *w_in, *w_out;
  const ExpertGradients& gradients;
  std::vector<std::int64_t> before_begin;

  std::int64_t count(std::int64_t e) const { return slots.begin[e + 1] - slots.begin[e]; }
};

// One expert.
class Backward {
 public:
  Backward(const Arguments& arguments, std::int64_t e, PassSize size)
      : a_(arguments),
        shape_(arguments.shape),
        e_(e),
        size_{std::min(size.slots, (a_.count(e) + kPanelRows - 1) / kPanelRows * kPanelRows), size.group},
        pass_(shape_, size_.slots),
        h_columns_(floats(column_elements(size_.slots, expert_width_))),
        row_columns_(floats(column_elements(size_.slots, width_))) {
    if (shape_.dtype == DType::kF32) return;
    sum_in_ = floats(hidden_ * width_);
    sum_out_ = floats(width_ * expert_width_);
  }

  void run(const RunTasks& run) {
    const std::int64_t begin = a_.slots.begin[e_], end = a_.slots.begin[e_ + 1];
    for (std::int64_t s = begin; s < end; s += size_.slots) {
      const std::int64_t n = std::min(size_.slots, end - s);
      run((n + size_.group - 1) / size_.group, [&](std::int64_t i) {
        const std::int64_t first = i * size_.group;
        of_slots(s + first, first, std::min(size_.group, n - first));
      });
      const std::int64_t of_in = (width_ + kColumns - 1) / kColumns;
      const std::int64_t of_out = (expert_width_ + kColumns - 1) / kColumns;
      run(of_in + of_out, [&](std::int64_t i) {
        const bool in = i < of_in;
        of_columns(in ? input_gradient() : output_gradient(), (in ? i : i - of_in) * kColumns, n, s > begin);
      });
    }
    if (shape_.dtype == DType::kF32) return;
    run(2, [&](std::int64_t i) { round(i == 0 ? input_gradient() : output_gradient()); });
  }

 private:
  // out [rows, columns] = sum over slots of left[slot] right[slot]^T.
  struct Gradient {
    const float *left, *right;
    std::int64_t rows, columns;
    float* sum;
    void* out;
  };
  Gradient input_gradient() {
    void* out = at(a_.gradients.d_w_in, e_ * hidden_ * width_, shape_.dtype);
    return {pass_.d_before(), row_columns_.as<float>(), hidden_, width_, sum_of(sum_in_, out), out};
  }
  Gradient output_gradient() {
    void* out = at(a_.gradients.d_w_out, e_ * width_ * expert_width_, shape_.dtype);
    return {pass_.d_out(), h_columns_.as<float>(), width_, expert_width_, sum_of(sum_out_, out), out};
  }
  float* sum_of(Buffer& sum, void* out) {
    return shape_.dtype == DType::kF32 ? static_cast<float*>(out) : sum.as<float>();
  }

  // Slots s .. s+n, which lie at `first` of the pass: d_inputs, and both sides of the weights' gradients.
  void of_slots(std::int64_t s, std::int64_t first, std::int64_t n) {
    const DType dtype = shape_.dtype;
    const void* kept = at(
        a_.before, a_.before_begin[static_cast<std::size_t>(e_)] + (s - a_.slots.begin[e_]) * hidden_, dtype);
    pass_.run(a_.g, a_.slots.row + s, a_.slot_weight + s, kept, at(a_.w_in, e_ * hidden_ * width_, dtype),
              at(a_.w_out, e_ * width_ * expert_width_, dtype), first, n,
              at(a_.gradients.d_inputs, s * width_, dtype));
    columns_of_panels(pass_.h(first), n, expert_width_,
                      h_columns_.as<float>() + column_elements(first, expert_width_));
    pack_columns(dtype, a_.rows, a_.slots.row + s, n, width_,
                 row_columns_.as<float>() + column_elements(first, width_));
  }

  // Columns from `column` on of a gradient, group after group.
  void of_columns(const Gradient& gradient, std::int64_t column, std::int64_t n, bool add) {
    for (std::int64_t first = 0; first < n; first += size_.group) {
      const std::int64_t in_group = std::min(size_.group, n - first);
      outer_product(gradient.left + first * gradient.rows, gradient.rows,
                    gradient.right + column_elements(first, gradient.columns) + column * in_group,
                    std::min(kColumns, gradient.columns - column), in_group, add || first > 0,
                    gradient.sum + column, gradient.columns);
    }
  }

  void round(const Gradient& gradient) {
    convert(DType::kF32, gradient.sum, shape_.dtype, gradient.out, gradient.rows * gradient.columns);
  }

  const Arguments& a_;
  const ExpertShape& shape_;
  const std::int64_t e_;
  const std::int64_t width_ = shape_.width, expert_width_ = shape_.expert_width,
                     hidden_ = shape_.hidden_width();
  const PassSize size_;
  SlotsBackward pass_;
  Buffer h_columns_, row_columns_;  // group after group
  Buffer sum_in_, sum_out_;         // in fp32, where the gradients are not
};

void one_after_another(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  for (std::int64_t i = 0; i < n; ++i) task(i);
}

}  // namespace

void experts_backward(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                      const float* slot_weight, const void* rows, const void* before, const void* w_in,
                      const void* w_out, const ExpertGradients& gradients, const RunTasks& run) {
  require_fp32_or_bf16(shape, "experts_backward");
  const Arguments arguments{shape,  slots, g,     slot_weight, rows,
                            before, w_in,  w_out, gradients,   before_begins(shape, slots)};
  std::vector<std::int64_t> experts(static_cast<std::size_t>(shape.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  // The long tasks first: what is left at the end is short.
  std::stable_sort(experts.begin(), experts.end(),
                   [&](auto a, auto b) { return arguments.count(a) > arguments.count(b); });
  const std::int64_t total = slots.begin[shape.num_experts];
  const auto large = std::find_if_not(experts.begin(), experts.end(), [&](std::int64_t e) {
    return arguments.count(e) > kTogether.group && arguments.count(e) * kLargePart > total;
  });
  for (auto e = experts.begin(); e != large; ++e) Backward(arguments, *e, kTogether).run(run);
  run(experts.end() - large, [&](std::int64_t i) {
    const std::int64_t e = large[i];
    if (arguments.count(e) == 0) {
      const std::int64_t matrix = shape.width * shape.expert_width;
      return zero_weight_gradients(shape,
                                   at(gradients.d_w_in, e * shape.hidden_width() * shape.width, shape.dtype),
                                   at(gradients.d_w_out, e * matrix, shape.dtype));
    }
    Backward(arguments, e, kAlone).run(one_after_another);
  });
}

}  // namespace moesaic::kernels
