// checks.h: shapes and dtypes of tensors that come in from outside the room.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "moesaic/core/dtype.h"

namespace moesaic {

// InvalidArgument naming the tensor, its shape and the expected one.
void require_shape(std::string_view name, const at::Tensor& tensor, at::IntArrayRef expected);

// InvalidArgument naming the tensor, its shape and its strides: for what is read through a pointer.
void require_contiguous(std::string_view name, const at::Tensor& tensor);

at::ScalarType scalar_type(DType dtype);

// kF32 or kBF16; InvalidArgument naming the tensor for any other dtype.
DType compute_dtype(std::string_view name, const at::Tensor& tensor);

}  // namespace moesaic
