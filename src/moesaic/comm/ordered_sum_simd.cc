#include "moesaic/comm/ordered_sum.h"

#include "moesaic/core/error.h"
#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/comm/ordered_sum_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/core/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::HWY_NAMESPACE {

using Parts = std::vector<std::vector<const std::byte*>>;

// kVectors vectors of the sum, from element `at` on.
template <int kVectors, typename Wire, typename Result, class Access>
HWY_INLINE void sum_vectors(const Access& access, const Parts& parts, std::int64_t at, Result* target) {
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  const auto load = [&](const std::byte* part, int v) {
    return access.load(reinterpret_cast<const Wire*>(part) + at + v * kLanes);
  };
  Vector total[kVectors], node_sum[kVectors];
  for (Vector& v : total) v = hn::Zero(F32());
  bool first_node = true;
  for (const auto& node : parts) {
    if (node.empty()) continue;
    for (int v = 0; v < kVectors; ++v) node_sum[v] = load(node[0], v);
    for (std::size_t r = 1; r < node.size(); ++r) {
      for (int v = 0; v < kVectors; ++v) node_sum[v] = hn::Add(node_sum[v], load(node[r], v));
    }
    for (int v = 0; v < kVectors; ++v) {
      if (node.size() > 1) node_sum[v] = rounded_to<Wire>(node_sum[v]);
      total[v] = first_node ? node_sum[v] : hn::Add(total[v], node_sum[v]);
    }
    first_node = false;
  }
  for (int v = 0; v < kVectors; ++v) access.store(target + at + v * kLanes, total[v]);
}

template <typename Wire, typename Result>
void sum_all(const Parts& parts, std::int64_t count, std::byte* target) {
  constexpr int kBlock = 4;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  auto* to = reinterpret_cast<Result*>(target);
  std::int64_t at = 0;
  for (; at + kBlock * kLanes <= count; at += kBlock * kLanes) {
    sum_vectors<kBlock, Wire>(Whole{}, parts, at, to);
  }
  for_each_vector(count - at,
                  [&](auto access, std::int64_t i) { sum_vectors<1, Wire>(access, parts, at + i, to); });
}

void OrderedSum(DType wire, const Parts& parts, std::int64_t count, DType result, std::byte* target) {
  const auto sum = wire == DType::kF32
                       ? (result == DType::kF32 ? sum_all<float, float> : sum_all<float, BF16>)
                       : (result == DType::kF32 ? sum_all<BF16, float> : sum_all<BF16, BF16>);
  sum(parts, count, target);
}

}  // namespace moesaic::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic {

HWY_EXPORT(OrderedSum);

void ordered_sum(DType wire, const std::vector<std::vector<const std::byte*>>& parts, std::int64_t count,
                 DType result, std::byte* target) {
  const auto is_row = [](DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; };
  // Counts and losses: few, and exact by their order alone. Errors too.
  if (!is_row(wire) || !is_row(result)) return reference::ordered_sum(wire, parts, count, result, target);
  HWY_DYNAMIC_DISPATCH(OrderedSum)(wire, parts, count, result, target);
}

}  // namespace moesaic
#endif  // HWY_ONCE
