#include "moesaic/kernels/experts_slots.h"

#include <cstring>

#include "moesaic/kernels/activation.h"

namespace moesaic::kernels {
namespace {

void activate_backward(const ExpertShape& shape, const void* before, const void* dh, std::int64_t n,
                       void* d_before) {
  const auto function = shape.gated ? swiglu_backward : relu_backward;
  for_each_panel(n, [&](std::int64_t i, std::int64_t lanes) {
    function(shape.dtype, at(before, i * shape.hidden_width(), shape.dtype),
             at(dh, i * shape.expert_width, shape.dtype), 1, shape.expert_width * lanes,
             at(d_before, i * shape.hidden_width(), shape.dtype), {});
  });
}

}  // namespace

SlotsBackward::SlotsBackward(const ExpertShape& shape, std::int64_t slots)
    : shape_(shape),
      d_out_(floats(panel_elements(slots, shape.width))),
      d_in_(floats(panel_elements(slots, shape.width))),
      h_(shape.dtype, panel_elements(slots, shape.expert_width)),
      dh_(shape.dtype, panel_elements(slots, shape.expert_width)),
      d_before_(shape.dtype, panel_elements(slots, shape.hidden_width())) {}

void SlotsBackward::run(const void* g, const std::int64_t* row, const float* slot_weight, const void* before,
                        const void* w_in, const void* w_out, std::int64_t first, std::int64_t n,
                        void* d_inputs) {
  const DType dtype = shape_.dtype;
  const std::int64_t width = shape_.width, expert_width = shape_.expert_width, hidden = shape_.hidden_width();
  const std::int64_t at_h = first * expert_width, at_before = first * hidden;
  pack_panels(dtype, g, row, slot_weight, n, width, d_out(first));

  activate_panels(shape_, before, n, h_.rounded(at_h));
  h_.widen(panel_elements(n, expert_width), at_h);

  transposed_panel_product(dtype, w_out, width, expert_width, d_out(first), n, dh_.wide(at_h));
  dh_.round(panel_elements(n, expert_width), at_h);
  activate_backward(shape_, before, dh_.rounded(at_h), n, d_before_.rounded(at_before));
  d_before_.widen(panel_elements(n, hidden), at_before);

  float* d_in = d_in_.as<float>() + first * width;
  transposed_panel_product(dtype, w_in, hidden, width, d_before(first), n, d_in);
  unpack_panels(dtype, d_in, n, width, d_inputs);
}

void zero_weight_gradients(const ExpertShape& shape, void* d_w_in, void* d_w_out) {
  const std::int64_t element = size_of(shape.dtype);
  std::memset(d_w_in, 0, static_cast<std::size_t>(shape.hidden_width() * shape.width * element));
  std::memset(d_w_out, 0, static_cast<std::size_t>(shape.width * shape.expert_width * element));
}

}  // namespace moesaic::kernels
