#include "moesaic/comm/ordered_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "moesaic/core/bf16.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

using Parts = std::vector<std::vector<const std::byte*>>;

constexpr std::int64_t kBlock = 2048;  // two fp32 accumulators of this many elements: 16 KiB

// Unaligned; compiles to plain vector loads and stores.
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

// sum[0..n) = the parts of one node, rounded to the wire's dtype.
template <typename Wire>
void sum_node(const std::vector<const std::byte*>& parts, std::int64_t begin, std::int64_t n, float* sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(load<Wire>(parts[0], begin + i));
  for (std::size_t p = 1; p < parts.size(); ++p) {
    const std::byte* part = parts[p];
    for (std::int64_t i = 0; i < n; ++i) sum[i] += widen(load<Wire>(part, begin + i));
  }
  if (parts.size() > 1) {
    for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(narrow<Wire>(sum[i]));
  }
}

template <typename Wire, typename Result>
void sum_nodes(const Parts& parts, std::int64_t count, std::byte* target) {
  std::array<float, kBlock> total;
  std::array<float, kBlock> node_sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    bool first = true;
    for (const auto& node : parts) {
      if (node.empty()) continue;
      sum_node<Wire>(node, begin, n, first ? total.data() : node_sum.data());
      if (!first) {
        for (std::int64_t i = 0; i < n; ++i)
          total[static_cast<std::size_t>(i)] += node_sum[static_cast<std::size_t>(i)];
      }
      first = false;
    }
    if (first) total.fill(0.0f);
    for (std::int64_t i = 0; i < n; ++i) {
      store(target, begin + i, narrow<Result>(total[static_cast<std::size_t>(i)]));
    }
  }
}

// T is double, or uint64 for int64 (which wraps without being undefined).
template <typename T>
void sum_exact(const Parts& parts, std::int64_t count, std::byte* target) {
  for (std::int64_t i = 0; i < count; ++i) {
    T sum{};
    bool first = true;
    for (const auto& node : parts) {
      for (const std::byte* part : node) {
        const T value = load<T>(part, i);
        sum = first ? value : sum + value;
        first = false;
      }
    }
    store(target, i, sum);
  }
}

template <typename Wire>
void sum_to(DType result, const Parts& parts, std::int64_t count, std::byte* target) {
  if (result == DType::kF32) return sum_nodes<Wire, float>(parts, count, target);
  if (result == DType::kBF16) return sum_nodes<Wire, BF16>(parts, count, target);
  throw InvalidArgument(fmt::format("sums are stored as fp32 or bf16, got {}", name_of(result)));
}

}  // namespace

void ordered_sum(DType wire, const Parts& parts, std::int64_t count, DType result, std::byte* target) {
  if (wire == DType::kF32) return sum_to<float>(result, parts, count, target);
  if (wire == DType::kBF16) return sum_to<BF16>(result, parts, count, target);
  require(wire == DType::kF64 || wire == DType::kI64, "cannot sum {}", name_of(wire));
  require(result == wire, "sums of {} are stored as {}, got {}", name_of(wire), name_of(wire),
          name_of(result));
  if (wire == DType::kF64) return sum_exact<double>(parts, count, target);
  return sum_exact<std::uint64_t>(parts, count, target);
}

}  // namespace moesaic
