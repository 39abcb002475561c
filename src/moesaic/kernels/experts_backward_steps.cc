// The backward pass in two steps: slots in any order, part by part, then the gradients of the weights, whose
// sums keep the order of all slots.
#include <algorithm>

#include "moesaic/kernels/experts_slots.h"

namespace moesaic::kernels {
namespace {

// Slots of a pass: every pass over slots reads the weights, and of the second step writes their gradients.
constexpr std::int64_t kSlots = 512;

// Calls body(first slot, number of slots) for each pass of an expert's slots.
template <typename Body>
void for_each_pass(const ExpertSlots& slots, std::int64_t expert, const Body& body) {
  const std::int64_t end = slots.begin[expert + 1];
  for (std::int64_t s = slots.begin[expert]; s < end; s += kSlots) body(s, std::min(kSlots, end - s));
}

std::int64_t slots_of(const ExpertSlots& slots, std::int64_t e) {
  return slots.begin[e + 1] - slots.begin[e];
}

// One gradient [rows,columns], summed in fp32 over passes and rounded once.
class Sum {
 public:
  Sum(DType dtype, std::int64_t rows, std::int64_t columns, void* out)
      : dtype_(dtype), rows_(rows), columns_(columns), out_(out) {
    if (dtype != DType::kF32) wide_ = floats(rows * columns);
  }
  // left in panels, right in columns.
  void add(const float* left, const float* right, std::int64_t n) {
    float* sum = dtype_ == DType::kF32 ? static_cast<float*>(out_) : wide_.as<float>();
    outer_product(left, rows_, right, columns_, n, begun_, sum, columns_);
    begun_ = true;
  }
  void end() {
    if (dtype_ != DType::kF32) convert(DType::kF32, wide_.data(), dtype_, out_, rows_ * columns_);
  }

 private:
  DType dtype_;
  std::int64_t rows_, columns_;
  void* out_;
  Buffer wide_;
  bool begun_ = false;
};

}  // namespace

void experts_backward_slots(const ExpertShape& shape, const ExpertSlots& slots, const void* g,
                            const float* slot_weight, const void* before, const void* w_in, const void* w_out,
                            const SlotGradients& gradients, const RunTasks& run) {
  require_fp32_or_bf16(shape, "experts_backward_slots");
  const DType dtype = shape.dtype;
  const std::int64_t width = shape.width, expert_width = shape.expert_width, hidden = shape.hidden_width();
  const std::vector<std::int64_t> before_begin = before_begins(shape, slots);
  run(shape.num_experts, [&](std::int64_t e) {
    if (slots_of(slots, e) == 0) return;
    SlotsBackward part(shape, std::min(kSlots, slots_of(slots, e)));
    for_each_pass(slots, e, [&](std::int64_t s, std::int64_t n) {
      const std::int64_t kept = before_begin[static_cast<std::size_t>(e)] + (s - slots.begin[e]) * hidden;
      part.run(g, slots.row + s, slot_weight + s, at(before, kept, dtype),
               at(w_in, e * hidden * width, dtype), at(w_out, e * width * expert_width, dtype), 0, n,
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
  run(shape.num_experts, [&](std::int64_t e) {
    void* of_in = at(d_w_in, e * hidden * width, dtype);
    void* of_out = at(d_w_out, e * width * expert_width, dtype);
    if (slots_of(slots, e) == 0) return zero_weight_gradients(shape, of_in, of_out);
    const std::int64_t most = std::min(kSlots, slots_of(slots, e));
    Buffer panels = floats(panel_elements(most, std::max(width, hidden)));
    Buffer columns = floats(column_elements(most, std::max(width, expert_width)));
    Sum in(dtype, hidden, width, of_in), out(dtype, width, expert_width, of_out);
    for_each_pass(slots, e, [&](std::int64_t s, std::int64_t n) {
      pack_panels(dtype, g, slots.row + s, slot_weight + s, n, width, panels.as<float>());
      pack_columns(dtype, h, place + s, n, expert_width, columns.as<float>());
      out.add(panels.as<float>(), columns.as<float>(), n);
      pack_panels(dtype, d_before, place + s, nullptr, n, hidden, panels.as<float>());
      pack_columns(dtype, rows, slots.row + s, n, width, columns.as<float>());
      in.add(panels.as<float>(), columns.as<float>(), n);
    });
    in.end();
    out.end();
  });
}

}  // namespace moesaic::kernels
