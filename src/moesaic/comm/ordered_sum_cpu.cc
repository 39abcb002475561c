#include <cstring>
#include <optional>

#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

using Parts = std::vector<std::vector<const std::byte*>>;

// Parts need no alignment.
template <typename T>
T load(const std::byte* from, std::int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <typename T>
void store(std::byte* to, std::int64_t i, T value) {
  std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

float widen(float value) { return value; }
float widen(BF16 value) { return to_float(value); }
template <typename T>
T narrow(float value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(value);
  } else {
    return value;
  }
}

template <typename Wire, typename Result>
void sum_nodes(const Parts& parts, std::int64_t count, std::byte* target) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::optional<float> total;
    for (const auto& node : parts) {
      if (node.empty()) continue;
      float sum = widen(load<Wire>(node[0], i));
      for (std::size_t r = 1; r < node.size(); ++r) sum += widen(load<Wire>(node[r], i));
      if (node.size() > 1) sum = widen(narrow<Wire>(sum));
      total = total ? *total + sum : sum;
    }
    store(target, i, narrow<Result>(total.value_or(0.0f)));
  }
}

// T is double, or uint64 for int64 (which wraps without being undefined).
template <typename T>
void sum_exact(const Parts& parts, std::int64_t count, std::byte* target) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::optional<T> sum;
    for (const auto& node : parts) {
      for (const std::byte* part : node) {
        const T value = load<T>(part, i);
        sum = sum ? *sum + value : value;
      }
    }
    store(target, i, sum.value_or(T{}));
  }
}

template <typename Wire>
void sum_to(DType result, const Parts& parts, std::int64_t count, std::byte* target) {
  if (result == DType::kF32) return sum_nodes<Wire, float>(parts, count, target);
  if (result == DType::kBF16) return sum_nodes<Wire, BF16>(parts, count, target);
  throw InvalidArgument(fmt::format("sums are stored as fp32 or bf16, got {}", name_of(result)));
}

}  // namespace

void reference::ordered_sum(DType wire, const Parts& parts, std::int64_t count, DType result,
                            std::byte* target) {
  if (wire == DType::kF32) return sum_to<float>(result, parts, count, target);
  if (wire == DType::kBF16) return sum_to<BF16>(result, parts, count, target);
  require(wire == DType::kF64 || wire == DType::kI64, "cannot sum {}", name_of(wire));
  require(result == wire, "sums of {} are stored as {}, got {}", name_of(wire), name_of(wire),
          name_of(result));
  if (wire == DType::kF64) return sum_exact<double>(parts, count, target);
  return sum_exact<std::uint64_t>(parts, count, target);
}

}  // namespace moesaic
