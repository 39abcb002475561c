// dtype.h: element types of tensors in memory, on the wire and in files.
#pragma once

#include <cstdint>
#include <string_view>

namespace moesaic {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kU8, kBool };

// Bytes per element.
std::int64_t size_of(DType dtype);

// "fp32", "bf16", "fp16", "fp64", "int64", "int32", "int16", "uint8", "bool".
std::string_view name_of(DType dtype);

// The inverse of name_of; throws InvalidArgument naming the allowed values.
DType dtype_from_name(std::string_view name);

}  // namespace moesaic
