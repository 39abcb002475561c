#include "moesaic/nn/expert_products.h"

#include <ATen/Version.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/ordered_sum.h"
#include "moesaic/kernels/permute.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/parallel.h"

namespace moesaic {
namespace {

// Below, weights are read faster than multiplied, and the library's packing shows.
constexpr std::int64_t kLibraryRowsPerExpert = 16;

at::Tensor new_rows(const at::Tensor& like, std::int64_t num_rows, std::int64_t width) {
  return at::empty({num_rows, width}, like.options().requires_grad(false));
}

at::Tensor rows_of(const at::Tensor& permuted, const ExpertInput& input, std::size_t expert) {
  return permuted.narrow(0, input.expert_begin[expert],
                         input.expert_begin[expert + 1] - input.expert_begin[expert]);
}

bool is_empty(const ExpertInput& input, std::size_t expert) {
  return input.expert_begin[expert] == input.expert_begin[expert + 1];
}

// out rows of e = in rows of e times w[e]^T (or w[e]); in and out in expert order.
void multiply(const ExpertInput& input, const at::Tensor& in, const at::Tensor& w, bool transposed,
              at::Tensor& out) {
  for (std::size_t e = 0; e + 1 < input.expert_begin.size(); ++e) {
    if (is_empty(input, e)) continue;
    at::Tensor target = rows_of(out, input, e);
    const at::Tensor matrix = w.select(0, static_cast<std::int64_t>(e));
    at::mm_out(target, rows_of(in, input, e), transposed ? matrix.t() : matrix);
  }
}

// gradient[e] = (d_out rows of e)^T times (in rows of e); zero where there are none.
at::Tensor weight_gradient(const ExpertInput& input, const at::Tensor& d_out, const at::Tensor& in,
                           const at::Tensor& w) {
  at::Tensor gradient = at::empty_like(w);
  for (std::size_t e = 0; e + 1 < input.expert_begin.size(); ++e) {
    at::Tensor target = gradient.select(0, static_cast<std::int64_t>(e));
    if (is_empty(input, e)) {
      target.zero_();
    } else {
      at::mm_out(target, rows_of(d_out, input, e).t(), rows_of(in, input, e));
    }
  }
  return gradient;
}

at::Tensor permuted_rows(const ExpertInput& input, const void* rows, const at::Tensor& like) {
  at::Tensor permuted = new_rows(like, input.num_slots(), input.shape.width);
  kernels::permute_rows(input.shape.dtype, rows, input.row_begin.data(), input.position.data(),
                        input.num_rows(), input.shape.width, permuted.data_ptr());
  return permuted;
}

at::Tensor activated(const ExpertInput& input, const at::Tensor& before) {
  at::Tensor h = new_rows(before, before.size(0), input.shape.expert_width);
  (input.shape.gated ? kernels::swiglu : kernels::relu)(input.shape.dtype, before.data_ptr(), h.size(0),
                                                        h.size(1), h.data_ptr(), {});
  return h;
}

ExpertForward library_forward(const ExpertInput& input, const void* rows, const at::Tensor& w_in,
                              const at::Tensor& w_out) {
  ExpertForward result;
  result.before = new_rows(w_in, input.num_slots(), input.shape.hidden_width());
  multiply(input, permuted_rows(input, rows, w_in), w_in, /*transposed=*/true, result.before);
  result.outputs = new_rows(w_in, input.num_slots(), input.shape.width);
  multiply(input, activated(input, result.before), w_out, /*transposed=*/true, result.outputs);
  return result;
}

ExpertBackward library_backward(const ExpertInput& input, const void* g, const void* rows,
                                const at::Tensor& before, const at::Tensor& w_in, const at::Tensor& w_out) {
  const kernels::ExpertShape& shape = input.shape;
  at::Tensor d_outputs = new_rows(w_in, input.num_slots(), shape.width);
  kernels::permute_rows_scaled(shape.dtype, g, input.row_begin.data(), input.position.data(),
                               input.weight.data(), input.num_rows(), shape.width, d_outputs.data_ptr());
  ExpertBackward result;
  result.d_w_out = weight_gradient(input, d_outputs, activated(input, before), w_out);
  at::Tensor d_hidden = new_rows(w_in, input.num_slots(), shape.expert_width);
  multiply(input, d_outputs, w_out, /*transposed=*/false, d_hidden);
  at::Tensor d_before = at::empty_like(before);
  (shape.gated ? kernels::swiglu_backward : kernels::relu_backward)(
      shape.dtype, before.data_ptr(), d_hidden.data_ptr(), d_hidden.size(0), d_hidden.size(1),
      d_before.data_ptr(), {});
  result.d_w_in = weight_gradient(input, d_before, permuted_rows(input, rows, w_in), w_in);
  result.d_inputs = new_rows(w_in, input.num_slots(), shape.width);
  multiply(input, d_before, w_in, /*transposed=*/false, result.d_inputs);
  return result;
}

void require_weights(const at::Tensor& w_in, const at::Tensor& w_out) {
  require_contiguous("experts' w_in", w_in);
  require_contiguous("experts' w_out", w_out);
}

// Calls body(first row, number of rows) for pieces of the rows, on several threads.
template <typename Body>
void over_rows(const ExpertInput& input, const Body& body) {
  constexpr std::int64_t kPiece = 256;
  const std::int64_t num_rows = input.num_rows();
  run_tasks((num_rows + kPiece - 1) / kPiece,
            [&](std::int64_t i) { body(i * kPiece, std::min(kPiece, num_rows - i * kPiece)); });
}

}  // namespace

bool has_wide_vectors() { return at::get_cpu_capability() == "AVX512"; }

std::int64_t library_slots(std::int64_t num_experts, bool wide_vectors, bool only_panels) {
  return wide_vectors && !only_panels ? kLibraryRowsPerExpert * num_experts
                                      : std::numeric_limits<std::int64_t>::max();
}

ExpertInput expert_input(const kernels::ExpertShape& shape, std::vector<std::int64_t> row_begin,
                         const std::vector<std::int32_t>& slot_expert, std::vector<float> slot_weight) {
  ExpertInput input{shape, std::move(row_begin), {}, std::move(slot_weight), {}, {}, {}};
  input.position.resize(slot_expert.size());
  input.expert_begin.resize(static_cast<std::size_t>(shape.num_experts) + 1);
  kernels::counting_permute(slot_expert.data(), std::ssize(slot_expert), shape.num_experts,
                            input.expert_begin.data(), input.position.data());
  input.row.resize(slot_expert.size());
  input.expert_order_weight.resize(slot_expert.size());
  for (std::int64_t i = 0; i < input.num_rows(); ++i) {
    for (auto s = static_cast<std::size_t>(input.row_begin[static_cast<std::size_t>(i)]);
         s < static_cast<std::size_t>(input.row_begin[static_cast<std::size_t>(i) + 1]); ++s) {
      const auto at_position = static_cast<std::size_t>(input.position[s]);
      input.row[at_position] = i;
      input.expert_order_weight[at_position] = input.weight[s];
    }
  }
  return input;
}

ExpertForward experts_forward(ProductKind kind, const ExpertInput& input, const void* rows,
                              const at::Tensor& w_in, const at::Tensor& w_out, bool keep) {
  require_weights(w_in, w_out);
  if (kind == ProductKind::kLibrary) return library_forward(input, rows, w_in, w_out);
  ExpertForward result;
  result.outputs = new_rows(w_in, input.num_slots(), input.shape.width);
  if (keep) {
    result.before = new_rows(w_in, 1, kernels::before_elements(input.shape, input.slots()));
  }
  kernels::experts_forward(input.shape, input.slots(), rows, w_in.data_ptr(), w_out.data_ptr(),
                           keep ? result.before.data_ptr() : nullptr, result.outputs.data_ptr(), run_tasks);
  return result;
}

ExpertBackward experts_backward(ProductKind kind, const ExpertInput& input, const void* g, const void* rows,
                                const at::Tensor& before, const at::Tensor& w_in, const at::Tensor& w_out) {
  require_weights(w_in, w_out);
  require_contiguous("experts' pre-activations", before);
  if (kind == ProductKind::kLibrary) return library_backward(input, g, rows, before, w_in, w_out);
  ExpertBackward result{new_rows(w_in, input.num_slots(), input.shape.width), at::empty_like(w_in),
                        at::empty_like(w_out)};
  kernels::experts_backward(input.shape, input.slots(), g, input.expert_order_weight.data(), rows,
                            before.data_ptr(), w_in.data_ptr(), w_out.data_ptr(),
                            {result.d_inputs.data_ptr(), result.d_w_in.data_ptr(), result.d_w_out.data_ptr()},
                            run_tasks);
  return result;
}

at::Tensor experts_backward_slots(const ExpertInput& input, const void* g, const at::Tensor& before,
                                  const at::Tensor& w_in, const at::Tensor& w_out, at::Tensor h,
                                  at::Tensor d_before) {
  require_weights(w_in, w_out);
  require_contiguous("experts' pre-activations", before);
  require_contiguous("experts' hidden rows", h);
  require_contiguous("gradients of experts' pre-activations", d_before);
  at::Tensor d_inputs = new_rows(w_in, input.num_slots(), input.shape.width);
  kernels::experts_backward_slots(input.shape, input.slots(), g, input.expert_order_weight.data(),
                                  before.data_ptr(), w_in.data_ptr(), w_out.data_ptr(),
                                  {d_inputs.data_ptr(), h.data_ptr(), d_before.data_ptr()}, run_tasks);
  return d_inputs;
}

ExpertBackward experts_backward_weights(const ExpertInput& input, std::span<const std::int64_t> place,
                                        const void* g, const void* rows, const at::Tensor& h,
                                        const at::Tensor& d_before, const at::Tensor& w_in,
                                        const at::Tensor& w_out) {
  require_weights(w_in, w_out);
  require_contiguous("experts' hidden rows", h);
  require_contiguous("gradients of experts' pre-activations", d_before);
  ExpertBackward result{{}, at::empty_like(w_in), at::empty_like(w_out)};
  kernels::experts_backward_weights(input.shape, input.slots(), place.data(), g,
                                    input.expert_order_weight.data(), rows, h.data_ptr(), d_before.data_ptr(),
                                    result.d_w_in.data_ptr(), result.d_w_out.data_ptr(), run_tasks);
  return result;
}

at::Tensor sum_slots(const ExpertInput& input, const at::Tensor& outputs, bool weighted, DType result) {
  require_contiguous("experts' outputs", outputs);
  const std::int64_t width = input.shape.width;
  at::TensorOptions options = outputs.options().requires_grad(false);
  if (result == DType::kF32) options = options.dtype(at::kFloat);
  at::Tensor sums = at::empty({input.num_rows(), width}, options);
  over_rows(input, [&](std::int64_t begin, std::int64_t n) {
    kernels::ordered_weighted_sum(input.shape.dtype, outputs.data_ptr(), input.row_begin.data() + begin,
                                  input.position.data(), weighted ? input.weight.data() : nullptr, n, width,
                                  result, sums.narrow(0, begin, n).data_ptr());
  });
  return sums;
}

std::vector<float> slot_gradients(const ExpertInput& input, const void* g, const at::Tensor& outputs) {
  require_contiguous("experts' outputs", outputs);
  const std::int64_t width = input.shape.width;
  std::vector<float> gradients(input.position.size());
  over_rows(input, [&](std::int64_t begin, std::int64_t n) {
    kernels::slot_dots(input.shape.dtype,
                       static_cast<const std::byte*>(g) + begin * width * size_of(input.shape.dtype),
                       outputs.data_ptr(), input.row_begin.data() + begin, input.position.data(), n, width,
                       gradients.data());
  });
  return gradients;
}

}  // namespace moesaic
