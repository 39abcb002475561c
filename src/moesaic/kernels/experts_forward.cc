#include <algorithm>
#include <cstring>

#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/experts_parts.h"
#include "moesaic/kernels/few_rows.h"

namespace moesaic::kernels {
namespace {

// Slots that a forward task takes at once: their panels stay near the core, and there are tasks enough.
constexpr std::int64_t kForwardSlots = 128;
struct ForwardScratch {
  Buffer in, out;
  RoundedPanels before, h;

  ForwardScratch(const ExpertShape& shape, std::int64_t slots)
      : in(floats(panel_elements(slots, shape.width))),
        out(floats(panel_elements(slots, shape.width))),
        before(shape.dtype, panel_elements(slots, shape.hidden_width())),
        h(shape.dtype, panel_elements(slots, shape.expert_width)) {}
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

}  // namespace

// A panel's gate rows lie before its up rows, so it is one long row to the activation.
void activate_panels(const ExpertShape& shape, const void* before, std::int64_t n, void* h) {
  const auto function = shape.gated ? swiglu : relu;
  for_each_panel(n, [&](std::int64_t i, std::int64_t lanes) {
    function(shape.dtype, at(before, i * shape.hidden_width(), shape.dtype), 1, shape.expert_width * lanes,
             at(h, i * shape.expert_width, shape.dtype), {});
  });
}

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
    activate_panels(shape, scratch.before.rounded(), task.n, scratch.h.rounded());
    scratch.h.widen(h_size);
    panel_product(shape.dtype, at(w_out, task.expert * width * expert_width, shape.dtype), width,
                  expert_width, scratch.h.wide(), task.n, scratch.out.as<float>());
    unpack_panels(shape.dtype, scratch.out.as<float>(), task.n, width,
                  at(outputs, task.begin * width, shape.dtype));
  });
}

}  // namespace moesaic::kernels
