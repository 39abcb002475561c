#include "moesaic/kernels/experts.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/core/error.h"
#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/convert.h"
#include "moesaic/kernels/few_rows.h"
#include "moesaic/kernels/panels.h"

namespace moesaic::kernels {
namespace {

// Slots that a forward task takes at once: their panels stay near the core, and there are tasks enough.
constexpr std::int64_t kForwardSlots = 128;
// Slots per pass over an expert's weight gradients, which every pass reads and writes.
constexpr std::int64_t kBackwardSlots = 512;

const std::byte* at(const void* base, std::int64_t element, DType dtype) {
  return static_cast<const std::byte*>(base) + element * size_of(dtype);
}
std::byte* at(void* base, std::int64_t element, DType dtype) {
  return static_cast<std::byte*>(base) + element * size_of(dtype);
}

Buffer floats(std::int64_t n) { return Buffer(n * static_cast<std::int64_t>(sizeof(float))); }

// Where the panels of each expert begin in `before`, in elements; the last entry is the total.
std::vector<std::int64_t> before_begins(const ExpertShape& shape, const ExpertSlots& slots) {
  std::vector<std::int64_t> begins{0};
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    begins.push_back(begins.back() +
                     panel_elements(slots.begin[e + 1] - slots.begin[e], shape.hidden_width()));
  }
  return begins;
}

// Calls body(first slot within [0,n), its number of rows) for each panel.
template <typename Body>
void for_each_panel(std::int64_t n, const Body& body) {
  for (std::int64_t i = 0; i < n; i += kPanelRows) body(i, panel_lanes(n - i));
}

// before -> h, panel by panel: a panel's gate rows lie before its up rows, so it is one long row to the
// activation.
void activate(const ExpertShape& shape, const void* before, std::int64_t n, void* h) {
  const auto function = shape.gated ? swiglu : relu;
  for_each_panel(n, [&](std::int64_t i, std::int64_t lanes) {
    function(shape.dtype, at(before, i * shape.hidden_width(), shape.dtype), 1, shape.expert_width * lanes,
             at(h, i * shape.expert_width, shape.dtype), {});
  });
}

void activate_backward(const ExpertShape& shape, const void* before, const void* dh, std::int64_t n,
                       void* d_before) {
  const auto function = shape.gated ? swiglu_backward : relu_backward;
  for_each_panel(n, [&](std::int64_t i, std::int64_t lanes) {
    function(shape.dtype, at(before, i * shape.hidden_width(), shape.dtype),
             at(dh, i * shape.expert_width, shape.dtype), 1, shape.expert_width * lanes,
             at(d_before, i * shape.hidden_width(), shape.dtype), {});
  });
}

// Panels that are kept or activated in the model's dtype, beside the fp32 ones that products read and write.
// In fp32 both are the same memory.
class RoundedPanels {
 public:
  RoundedPanels(DType dtype, std::int64_t elements) : dtype_(dtype), wide_(floats(elements)) {
    if (dtype != DType::kF32) narrow_ = Buffer(elements * size_of(dtype));
  }
  float* wide() { return wide_.as<float>(); }
  void* rounded() { return dtype_ == DType::kF32 ? wide_.data() : narrow_.data(); }
  void round(std::int64_t n) {
    if (dtype_ != DType::kF32) convert(DType::kF32, wide_.data(), dtype_, narrow_.data(), n);
  }
  void widen(std::int64_t n) {
    if (dtype_ != DType::kF32) convert(dtype_, narrow_.data(), DType::kF32, wide_.data(), n);
  }

 private:
  DType dtype_;
  Buffer wide_, narrow_;
};

struct ForwardScratch {
  Buffer in, out;
  RoundedPanels before, h;

  ForwardScratch(const ExpertShape& shape, std::int64_t slots)
      : in(floats(panel_elements(slots, shape.width))),
        out(floats(panel_elements(slots, shape.width))),
        before(shape.dtype, panel_elements(slots, shape.hidden_width())),
        h(shape.dtype, panel_elements(slots, shape.expert_width)) {}
};

struct Backward {
  const ExpertShape& shape;
  Buffer w_in_transposed, w_out_transposed, d_out, columns, d_in;
  RoundedPanels h, dh, d_before;
  Buffer d_w_in, d_w_out;  // sums in fp32, where the gradients are not

  Backward(const ExpertShape& s, std::int64_t slots)
      : shape(s),
        w_in_transposed(floats(transposed_elements(s.hidden_width(), s.width))),
        w_out_transposed(floats(transposed_elements(s.width, s.expert_width))),
        d_out(floats(panel_elements(slots, s.width))),
        columns(floats(column_elements(slots, std::max(s.width, s.expert_width)))),
        d_in(floats(panel_elements(slots, s.width))),
        h(s.dtype, panel_elements(slots, s.expert_width)),
        dh(s.dtype, panel_elements(slots, s.expert_width)),
        d_before(s.dtype, panel_elements(slots, s.hidden_width())) {
    if (s.dtype == DType::kF32) return;
    d_w_in = floats(s.hidden_width() * s.width);
    d_w_out = floats(s.width * s.expert_width);
  }

  float* sums(Buffer& buffer, void* gradient) {
    return shape.dtype == DType::kF32 ? static_cast<float*>(gradient) : buffer.as<float>();
  }
};

// An expert with few rows, as rows; nothing is kept for a backward pass.
void few_rows_forward(const ExpertShape& shape, const std::int64_t* row, std::int64_t n, const void* rows,
                      const void* w_in, const void* w_out, void* outputs) {
  const DType dtype = shape.dtype;
  const std::int64_t width = shape.width, expert_width = shape.expert_width, hidden = shape.hidden_width();
  Buffer wide = floats(n * width);
  RoundedPanels before(dtype, n * hidden), h(dtype, n * expert_width);
  for (std::int64_t i = 0; i < n; ++i) {
    convert(dtype, at(rows, row[i] * width, dtype), DType::kF32, wide.as<float>() + i * width, width);
  }
  few_rows_product(dtype, w_in, hidden, width, wide.as<float>(), n, before.wide(), w_out);
  before.round(n * hidden);
  (shape.gated ? swiglu : relu)(dtype, before.rounded(), n, expert_width, h.rounded(), {});
  h.widen(n * expert_width);
  few_rows_product(dtype, w_out, width, expert_width, h.wide(), n, wide.as<float>());
  convert(DType::kF32, wide.data(), dtype, outputs, n * width);
}

// The largest group of slots any expert hands to one pass.
std::int64_t largest_pass(const ExpertShape& shape, const ExpertSlots& slots, std::int64_t limit) {
  std::int64_t largest = 0;
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    largest = std::max(largest, slots.begin[e + 1] - slots.begin[e]);
  }
  return std::min(largest, limit);
}

void require_fp32_or_bf16(const ExpertShape& shape, const char* what) {
  require(shape.dtype == DType::kF32 || shape.dtype == DType::kBF16,
          "{}: got dtype {}, expected fp32 or bf16", what, name_of(shape.dtype));
}

}  // namespace

std::int64_t before_elements(const ExpertShape& shape, const ExpertSlots& slots) {
  return before_begins(shape, slots).back();
}

void experts_forward(const ExpertShape& shape, const ExpertSlots& slots, const void* rows, const void* w_in,
                     const void* w_out, void* before, void* outputs, const RunTasks& run) {
  require_fp32_or_bf16(shape, "experts_forward");
  const DType dtype = shape.dtype;
  const std::int64_t width = shape.width, expert_width = shape.expert_width, hidden = shape.hidden_width();
  const std::vector<std::int64_t> before_begin = before_begins(shape, slots);
  struct Task {
    std::int64_t expert, begin, n;
  };
  std::vector<Task> tasks;
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    for (std::int64_t s = slots.begin[e]; s < slots.begin[e + 1]; s += kForwardSlots) {
      tasks.push_back({e, s, std::min(kForwardSlots, slots.begin[e + 1] - s)});
    }
  }
  const std::int64_t pass = largest_pass(shape, slots, kForwardSlots);
  run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
    const Task& task = tasks[static_cast<std::size_t>(index)];
    if (before == nullptr && task.n <= kFewRows) {
      return few_rows_forward(
          shape, slots.row + task.begin, task.n, rows, at(w_in, task.expert * hidden * width, dtype),
          at(w_out, task.expert * width * expert_width, dtype), at(outputs, task.begin * width, dtype));
    }
    ForwardScratch scratch(shape, pass);
    const std::int64_t before_size = panel_elements(task.n, hidden),
                       h_size = panel_elements(task.n, expert_width);
    pack_panels(shape.dtype, rows, slots.row + task.begin, nullptr, task.n, width, scratch.in.as<float>());
    panel_product(shape.dtype, at(w_in, task.expert * hidden * width, shape.dtype), hidden, width,
                  scratch.in.as<float>(), task.n, scratch.before.wide());
    scratch.before.round(before_size);
    if (before != nullptr) {
      const std::int64_t offset = before_begin[static_cast<std::size_t>(task.expert)] +
                                  (task.begin - slots.begin[task.expert]) * hidden;
      std::memcpy(at(before, offset, shape.dtype), scratch.before.rounded(),
                  static_cast<std::size_t>(before_size * size_of(shape.dtype)));
    }
    activate(shape, scratch.before.rounded(), task.n, scratch.h.rounded());
    scratch.h.widen(h_size);
    panel_product(shape.dtype, at(w_out, task.expert * width * expert_width, shape.dtype), width,
                  expert_width, scratch.h.wide(), task.n, scratch.out.as<float>());
    unpack_panels(shape.dtype, scratch.out.as<float>(), task.n, width,
                  at(outputs, task.begin * width, shape.dtype));
  });
}

void experts_backward(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                      const float* slot_weight, const void* rows, const void* before, const void* w_in,
                      const void* w_out, const ExpertGradients& gradients, const RunTasks& run) {
  require_fp32_or_bf16(shape, "experts_backward");
  const DType dtype = shape.dtype;
  const std::int64_t width = shape.width, expert_width = shape.expert_width, hidden = shape.hidden_width();
  const std::vector<std::int64_t> before_begin = before_begins(shape, slots);
  const std::int64_t pass = largest_pass(shape, slots, kBackwardSlots);
  run(shape.num_experts, [&](std::int64_t e) {
    void* d_w_in = at(gradients.d_w_in, e * hidden * width, dtype);
    void* d_w_out = at(gradients.d_w_out, e * width * expert_width, dtype);
    const std::int64_t begin = slots.begin[e], end = slots.begin[e + 1];
    if (begin == end) {
      std::memset(d_w_in, 0, static_cast<std::size_t>(hidden * width * size_of(dtype)));
      std::memset(d_w_out, 0, static_cast<std::size_t>(width * expert_width * size_of(dtype)));
      return;
    }
    Backward b(shape, pass);
    float* sum_in = b.sums(b.d_w_in, d_w_in);
    float* sum_out = b.sums(b.d_w_out, d_w_out);
    pack_transposed(dtype, at(w_in, e * hidden * width, dtype), hidden, width, b.w_in_transposed.as<float>());
    pack_transposed(dtype, at(w_out, e * width * expert_width, dtype), width, expert_width,
                    b.w_out_transposed.as<float>());
    for (std::int64_t s = begin; s < end; s += kBackwardSlots) {
      const std::int64_t n = std::min(kBackwardSlots, end - s);
      const bool add = s > begin;
      const void* kept = at(before, before_begin[static_cast<std::size_t>(e)] + (s - begin) * hidden, dtype);
      pack_panels(dtype, g, slots.row + s, slot_weight + s, n, width, b.d_out.as<float>());

      activate(shape, kept, n, b.h.rounded());
      b.h.widen(panel_elements(n, expert_width));
      columns_of_panels(b.h.wide(), n, expert_width, b.columns.as<float>());
      outer_product(b.d_out.as<float>(), width, b.columns.as<float>(), expert_width, n, add, sum_out);

      transposed_panel_product(b.w_out_transposed.as<float>(), width, expert_width, b.d_out.as<float>(), n,
                               b.dh.wide());
      b.dh.round(panel_elements(n, expert_width));
      activate_backward(shape, kept, b.dh.rounded(), n, b.d_before.rounded());
      b.d_before.widen(panel_elements(n, hidden));

      pack_columns(dtype, rows, slots.row + s, n, width, b.columns.as<float>());
      outer_product(b.d_before.wide(), hidden, b.columns.as<float>(), width, n, add, sum_in);
      transposed_panel_product(b.w_in_transposed.as<float>(), hidden, width, b.d_before.wide(), n,
                               b.d_in.as<float>());
      unpack_panels(dtype, b.d_in.as<float>(), n, width, at(gradients.d_inputs, s * width, dtype));
    }
    if (dtype != DType::kF32) {
      convert(DType::kF32, sum_in, dtype, d_w_in, hidden * width);
      convert(DType::kF32, sum_out, dtype, d_w_out, width * expert_width);
    }
  });
}

}  // namespace moesaic::kernels
