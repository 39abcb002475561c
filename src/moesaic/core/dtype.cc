#include "moesaic/core/dtype.h"

#include <array>
#include <string>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

struct Entry {
  DType dtype;
  std::int64_t bytes;
  std::string_view name;
};

constexpr std::array kEntries = {
    Entry{DType::kF32, 4, "fp32"},  Entry{DType::kBF16, 2, "bf16"}, Entry{DType::kF16, 2, "fp16"},
    Entry{DType::kF64, 8, "fp64"},  Entry{DType::kI64, 8, "int64"}, Entry{DType::kI32, 4, "int32"},
    Entry{DType::kI16, 2, "int16"}, Entry{DType::kU8, 1, "uint8"},  Entry{DType::kBool, 1, "bool"},
};

}  // namespace

std::int64_t size_of(DType dtype) { return kEntries.at(static_cast<std::size_t>(dtype)).bytes; }

std::string_view name_of(DType dtype) { return kEntries.at(static_cast<std::size_t>(dtype)).name; }

DType dtype_from_name(std::string_view name) {
  std::string allowed;
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
    allowed += allowed.empty() ? "" : ", ";
    allowed += entry.name;
  }
  throw InvalidArgument(fmt::format("dtype '{}' is unknown; expected one of {}", name, allowed));
}

}  // namespace moesaic
