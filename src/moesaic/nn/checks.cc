#include "moesaic/nn/checks.h"

#include <fmt/ranges.h>

#include "moesaic/core/error.h"

namespace moesaic {

void require_shape(std::string_view name, const at::Tensor& tensor, at::IntArrayRef expected) {
  require(tensor.defined(), "{}: expected a tensor of shape [{}], got none", name, fmt::join(expected, ", "));
  require(tensor.sizes() == expected, "{}: expected shape [{}], got [{}]", name, fmt::join(expected, ", "),
          fmt::join(tensor.sizes(), ", "));
}

void require_contiguous(std::string_view name, const at::Tensor& tensor) {
  require(tensor.is_contiguous(), "{}: expected contiguous memory, got strides [{}] of shape [{}]", name,
          fmt::join(tensor.strides(), ", "), fmt::join(tensor.sizes(), ", "));
}

at::ScalarType scalar_type(DType dtype) { return dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat; }

DType compute_dtype(std::string_view name, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return DType::kF32;
  require(tensor.scalar_type() == at::kBFloat16, "{}: expected fp32 or bf16, got {}", name,
          c10::toString(tensor.scalar_type()));
  return DType::kBF16;
}

}  // namespace moesaic
