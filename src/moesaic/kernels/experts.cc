#include "moesaic/kernels/experts.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "moesaic/core/buffer.h"
#include "moesaic/core/error.h"
#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/convert.h"
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

// One expert's slots backward, a pass of them at a time.
class SlotsBackward {
 public:
  SlotsBackward(const ExpertShape& s, std::int64_t slots, const void* w_in, const void* w_out)
      : shape_(s),
        w_in_transposed_(floats(transposed_elements(s.hidden_width(), s.width))),
        w_out_transposed_(floats(transposed_elements(s.width, s.expert_width))),
        d_out_(floats(panel_elements(slots, s.width))),
        d_in_(floats(panel_elements(slots, s.width))),
        h_(s.dtype, panel_elements(slots, s.expert_width)),
        dh_(s.dtype, panel_elements(slots, s.expert_width)),
        d_before_(s.dtype, panel_elements(slots, s.hidden_width())) {
    pack_transposed(s.dtype, w_in, s.hidden_width(), s.width, w_in_transposed_.as<float>());
    pack_transposed(s.dtype, w_out, s.width, s.expert_width, w_out_transposed_.as<float>());
  }

  // n slots, whose rows, weights and pre-activations begin there. Leaves panels; d_inputs [n,D].
  void pass(const void* g, const std::int64_t* row, const float* weight, const void* before, std::int64_t n,
            void* d_inputs) {
    const std::int64_t width = shape_.width, expert_width = shape_.expert_width,
                       hidden = shape_.hidden_width();
    pack_panels(shape_.dtype, g, row, weight, n, width, d_out_.as<float>());
    activate(shape_, before, n, h_.rounded());
    h_.widen(panel_elements(n, expert_width));
    transposed_panel_product(w_out_transposed_.as<float>(), width, expert_width, d_out_.as<float>(), n,
                             dh_.wide());
    dh_.round(panel_elements(n, expert_width));
    activate_backward(shape_, before, dh_.rounded(), n, d_before_.rounded());
    d_before_.widen(panel_elements(n, hidden));
    transposed_panel_product(w_in_transposed_.as<float>(), hidden, width, d_before_.wide(), n,
                             d_in_.as<float>());
    unpack_panels(shape_.dtype, d_in_.as<float>(), n, width, d_inputs);
  }

  const float* d_out() const { return d_out_.as<float>(); }
  const float* h() { return h_.wide(); }
  const float* d_before() { return d_before_.wide(); }

 private:
  const ExpertShape& shape_;
  Buffer w_in_transposed_, w_out_transposed_, d_out_, d_in_;
  RoundedPanels h_, dh_, d_before_;
};

// One expert's weight gradients, summed in fp32 over passes of its slots in order.
class WeightSums {
 public:
  // Written to d_w_in, d_w_out at end().
  WeightSums(const ExpertShape& s, std::int64_t slots, void* d_w_in, void* d_w_out)
      : shape_(s),
        d_w_in_(d_w_in),
        d_w_out_(d_w_out),
        columns_(floats(column_elements(slots, std::max(s.width, s.expert_width)))) {
    if (s.dtype == DType::kF32) return;
    in_ = floats(s.hidden_width() * s.width);
    out_ = floats(s.width * s.expert_width);
  }

  float* columns() { return columns_.as<float>(); }
  // d_out in panels; `columns` hold h.
  void add_out(const float* d_out, std::int64_t n) {
    outer_product(d_out, shape_.width, columns(), shape_.expert_width, n, add_, sums(out_, d_w_out_));
  }
  // d_before in panels; `columns` hold rows. The last of a pass.
  void add_in(const float* d_before, std::int64_t n) {
    outer_product(d_before, shape_.hidden_width(), columns(), shape_.width, n, add_, sums(in_, d_w_in_));
    add_ = true;
  }
  void end() {
    if (shape_.dtype == DType::kF32) return;
    convert(DType::kF32, in_.data(), shape_.dtype, d_w_in_, shape_.hidden_width() * shape_.width);
    convert(DType::kF32, out_.data(), shape_.dtype, d_w_out_, shape_.width * shape_.expert_width);
  }

 private:
  float* sums(Buffer& buffer, void* gradient) {
    return shape_.dtype == DType::kF32 ? static_cast<float*>(gradient) : buffer.as<float>();
  }

  const ExpertShape& shape_;
  void *d_w_in_, *d_w_out_;
  Buffer columns_, in_, out_;  // in_, out_: where the gradients are not fp32
  bool add_ = false;
};

void zero_gradients(const ExpertShape& shape, void* d_w_in, void* d_w_out) {
  const std::int64_t element = size_of(shape.dtype);
  std::memset(d_w_in, 0, static_cast<std::size_t>(shape.hidden_width() * shape.width * element));
  std::memset(d_w_out, 0, static_cast<std::size_t>(shape.width * shape.expert_width * element));
}

// Calls body(first slot, number of slots) for each pass of an expert's slots.
template <typename Body>
void for_each_pass(const ExpertSlots& slots, std::int64_t expert, const Body& body) {
  const std::int64_t end = slots.begin[expert + 1];
  for (std::int64_t s = slots.begin[expert]; s < end; s += kBackwardSlots) {
    body(s, std::min(kBackwardSlots, end - s));
  }
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
    const std::int64_t in = e * hidden * width, out = e * width * expert_width;
    void *d_w_in = at(gradients.d_w_in, in, dtype), *d_w_out = at(gradients.d_w_out, out, dtype);
    if (slots.begin[e] == slots.begin[e + 1]) return zero_gradients(shape, d_w_in, d_w_out);
    SlotsBackward part(shape, pass, at(w_in, in, dtype), at(w_out, out, dtype));
    WeightSums sums(shape, pass, d_w_in, d_w_out);
    for_each_pass(slots, e, [&](std::int64_t s, std::int64_t n) {
      const std::int64_t kept = before_begin[static_cast<std::size_t>(e)] + (s - slots.begin[e]) * hidden;
      part.pass(g, slots.row + s, slot_weight + s, at(before, kept, dtype), n,
                at(gradients.d_inputs, s * width, dtype));
      columns_of_panels(part.h(), n, expert_width, sums.columns());
      sums.add_out(part.d_out(), n);
      pack_columns(dtype, rows, slots.row + s, n, width, sums.columns());
      sums.add_in(part.d_before(), n);
    });
    sums.end();
  });
}

void experts_backward_slots(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                            const float* slot_weight, const void* before, const void* w_in, const void* w_out,
                            const SlotGradients& gradients, const RunTasks& run) {
  require_fp32_or_bf16(shape, "experts_backward_slots");
  const DType dtype = shape.dtype;
  const std::int64_t width = shape.width, expert_width = shape.expert_width, hidden = shape.hidden_width();
  const std::vector<std::int64_t> before_begin = before_begins(shape, slots);
  const std::int64_t pass = largest_pass(shape, slots, kBackwardSlots);
  run(shape.num_experts, [&](std::int64_t e) {
    if (slots.begin[e] == slots.begin[e + 1]) return;
    SlotsBackward part(shape, pass, at(w_in, e * hidden * width, dtype),
                       at(w_out, e * width * expert_width, dtype));
    for_each_pass(slots, e, [&](std::int64_t s, std::int64_t n) {
      const std::int64_t kept = before_begin[static_cast<std::size_t>(e)] + (s - slots.begin[e]) * hidden;
      part.pass(g, slots.row + s, slot_weight + s, at(before, kept, dtype), n,
                at(gradients.d_inputs, s * width, dtype));
      unpack_panels(dtype, part.h(), n, expert_width, at(gradients.h, s * expert_width, dtype));
      unpack_panels(dtype, part.d_before(), n, hidden, at(gradients.d_before, s * hidden, dtype));
    });
  });
}

void experts_backward_weights(const ExpertShape& shape, const ExpertSlots& slots, const std::int64_t* place,
                              const void* g, const float* slot_weight, const void* rows, const void* h,
                              const void* d_before, void* d_w_in, void* d_w_out, const RunTasks& run) {
  require_fp32_or_bf16(shape, "experts_backward_weights");
  const DType dtype = shape.dtype;
  const std::int64_t width = shape.width, expert_width = shape.expert_width, hidden = shape.hidden_width();
  const std::int64_t pass = largest_pass(shape, slots, kBackwardSlots);
  run(shape.num_experts, [&](std::int64_t e) {
    void *in = at(d_w_in, e * hidden * width, dtype), *out = at(d_w_out, e * width * expert_width, dtype);
    if (slots.begin[e] == slots.begin[e + 1]) return zero_gradients(shape, in, out);
    Buffer panels = floats(panel_elements(pass, std::max(width, hidden)));
    WeightSums sums(shape, pass, in, out);
    for_each_pass(slots, e, [&](std::int64_t s, std::int64_t n) {
      pack_panels(dtype, g, slots.row + s, slot_weight + s, n, width, panels.as<float>());
      pack_columns(dtype, h, place + s, n, expert_width, sums.columns());
      sums.add_out(panels.as<float>(), n);
      pack_panels(dtype, d_before, place + s, nullptr, n, hidden, panels.as<float>());
      pack_columns(dtype, rows, slots.row + s, n, width, sums.columns());
      sums.add_in(panels.as<float>(), n);
    });
    sums.end();
  });
}

}  // namespace moesaic::kernels
