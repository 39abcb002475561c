#include <algorithm>

#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/experts_parts.h"
#include "moesaic/kernels/few_rows.h"

namespace moesaic::kernels {
namespace {

// Slots that a task takes at once: a matrix is read and converted once for them, their panels stay near the
// core, and there are tasks enough for a few threads.
constexpr std::int64_t kFewestSlots = 128, kMostSlots = 256, kTasks = 16;

struct Task {
  std::int64_t expert, begin, n;
};

// Each expert's slots in pieces of nearly equal size: a short rest would read the matrices for little.
std::vector<Task> tasks_of(const ExpertShape& shape, const ExpertSlots& slots) {
  const std::int64_t most = std::clamp(slots.begin[shape.num_experts] / kTasks, kFewestSlots, kMostSlots);
  std::vector<Task> tasks;
  for (std::int64_t e = 0; e < shape.num_experts; ++e) {
    const std::int64_t begin = slots.begin[e], end = slots.begin[e + 1];
    const std::int64_t pieces = (end - begin + most - 1) / most;
    if (pieces == 0) continue;
    const std::int64_t panels = (end - begin + kPanelRows - 1) / kPanelRows;
    const std::int64_t piece = (panels + pieces - 1) / pieces * kPanelRows;
    for (std::int64_t s = begin; s < end; s += piece) tasks.push_back({e, s, std::min(piece, end - s)});
  }
  return tasks;
}

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
  const std::vector<Task> tasks = tasks_of(shape, slots);
  run(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t index) {
    const Task& task = tasks[static_cast<std::size_t>(index)];
    if (before == nullptr && task.n <= kFewRows) {
      return few_rows_forward(
          shape, slots.row + task.begin, task.n, rows, at(w_in, task.expert * hidden * width, dtype),
          at(w_out, task.expert * width * expert_width, dtype), at(outputs, task.begin * width, dtype));
    }
    ForwardScratch scratch(shape, task.n);
    pack_panels(dtype, rows, slots.row + task.begin, nullptr, task.n, width, scratch.in.as<float>());
    void* rounded = scratch.before.rounded();
    if (before != nullptr) {
      rounded = at(before,
                   before_begin[static_cast<std::size_t>(task.expert)] +
                       (task.begin - slots.begin[task.expert]) * hidden,
                   dtype);
    }
    float* product = dtype == DType::kF32 ? static_cast<float*>(rounded) : scratch.before.wide();
    panel_product(dtype, at(w_in, task.expert * hidden * width, dtype), hidden, width, scratch.in.as<float>(),
                  task.n, product);
    if (dtype != DType::kF32) {
      convert(DType::kF32, product, dtype, rounded, panel_elements(task.n, hidden));
    }
    activate_panels(shape, rounded, task.n, scratch.h.rounded());
    scratch.h.widen(panel_elements(task.n, expert_width));
    panel_product(dtype, at(w_out, task.expert * width * expert_width, dtype), width, expert_width,
                  scratch.h.wide(), task.n, scratch.out.as<float>());
    unpack_panels(dtype, scratch.out.as<float>(), task.n, width, at(outputs, task.begin * width, dtype));
  });
}

}  // namespace moesaic::kernels
