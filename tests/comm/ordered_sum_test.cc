#include "moesaic/comm/ordered_sum.h"

#include "moesaic/core/simd_targets.h"
// After the targets are chosen:
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "moesaic/core/bf16.h"
#include "moesaic/core/rng.h"
#include "tests/comm/thrown.h"

namespace moesaic {
namespace {

using Parts = std::vector<std::vector<const std::byte*>>;
using Bytes = std::vector<std::byte>;

// Values of every kind, from `offset` bytes on.
Bytes part_of(DType dtype, std::int64_t count, std::size_t offset, std::uint64_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::array<float, 6> special = {-0.0f, kInf, -kInf, std::nanf(""), 1e-40f, 3e38f};
  Bytes bytes(offset + static_cast<std::size_t>(count * size_of(dtype)));
  const std::uint64_t key = random_key(seed, "part");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t draw = random_bits(key, static_cast<std::uint64_t>(i), 1);
    const float value =
        draw % 17 < special.size() ? special[draw % 17] : random_normal(key, static_cast<std::uint64_t>(i));
    std::byte* at = bytes.data() + offset + i * size_of(dtype);
    if (dtype == DType::kF32) {
      std::memcpy(at, &value, 4);
    } else {
      const BF16 rounded = to_bf16(value);
      std::memcpy(at, &rounded, 2);
    }
  }
  return bytes;
}

void expect_equals_the_oracle(DType wire, DType result, const std::vector<int>& ranks_of_node,
                              std::int64_t count, std::size_t offset) {
  std::vector<Bytes> memory;
  for (const int ranks : ranks_of_node) {
    for (int r = 0; r < ranks; ++r) memory.push_back(part_of(wire, count, offset, 11 + memory.size()));
  }
  Parts parts;
  std::size_t next = 0;
  for (const int ranks : ranks_of_node) {
    auto& node = parts.emplace_back();
    for (int r = 0; r < ranks; ++r) node.push_back(memory[next++].data() + offset);
  }
  const auto bytes = offset + static_cast<std::size_t>(count * size_of(result));
  Bytes fast(bytes, std::byte{0xaa}), expected(bytes, std::byte{0xaa});
  ordered_sum(wire, parts, count, result, fast.data() + offset);
  reference::ordered_sum(wire, parts, count, result, expected.data() + offset);
  EXPECT_EQ(fast, expected) << name_of(wire) << " to " << name_of(result) << ", " << count
                            << " elements at byte " << offset << ", " << ranks_of_node.size() << " nodes";
}

TEST(OrderedSum, EqualsTheOracleBitForBit) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      for (const DType result : {DType::kF32, DType::kBF16}) {
        for (const std::vector<int>& nodes :
             {std::vector<int>{}, {1}, {2}, {7}, {1, 1}, {0, 2}, {3, 1, 2}, {0, 0}}) {
          for (const std::int64_t count : {0, 1, 7, 8, 31, 32, 33, 100}) {
            for (const std::size_t offset : {0u, 1u})
              expect_equals_the_oracle(wire, result, nodes, count, offset);
          }
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(OrderedSum, MayReplaceOneOfItsParts) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Bytes a = part_of(dtype, 77, 0, 1);
    Bytes b = part_of(dtype, 77, 0, 2), expected = b;
    reference::ordered_sum(dtype, {{a.data(), b.data()}}, 77, dtype, expected.data());
    ordered_sum(dtype, {{a.data(), b.data()}}, 77, dtype, b.data());
    EXPECT_EQ(b, expected);
  }
}

TEST(OrderedSum, ReadsUnalignedPartsAndRoundsTheResult) {
  std::array<std::byte, 64> memory{};
  const auto part_at = [&](std::size_t offset, BF16 value) {
    for (std::size_t i = 0; i < 3; ++i) std::memcpy(&memory[offset + 2 * i], &value, 2);
    return memory.data() + offset;
  };
  const float tiny = 1.0f / 512;  // below half a bf16 step at 1
  const std::vector<std::vector<const std::byte*>> together{
      {part_at(1, to_bf16(1)), part_at(9, to_bf16(tiny)), part_at(17, to_bf16(tiny))}};
  const std::vector<std::vector<const std::byte*>> apart{
      {together[0][0]}, {together[0][1]}, {together[0][2]}};
  std::array<float, 3> sum{};
  std::array<BF16, 3> rounded{};
  ordered_sum(DType::kBF16, together, 3, DType::kF32, reinterpret_cast<std::byte*>(sum.data()));
  EXPECT_EQ(sum[2], 1.0f);  // the node's sum 1 + 2^-8 is a tie of the wire's rounding, to even
  ordered_sum(DType::kBF16, apart, 3, DType::kF32, reinterpret_cast<std::byte*>(sum.data()));
  EXPECT_EQ(sum[2], 1.0f + 2 * tiny);
  ordered_sum(DType::kBF16, apart, 3, DType::kBF16, reinterpret_cast<std::byte*>(rounded.data()));
  EXPECT_EQ(to_float(rounded[2]), 1.0f);
  ordered_sum(DType::kF32, {}, 3, DType::kF32, reinterpret_cast<std::byte*>(sum.data()));
  EXPECT_EQ(sum[2], 0.0f);
  EXPECT_SAYS(thrown_by([&] { ordered_sum(DType::kU8, {}, 0, DType::kU8, nullptr); }), "cannot sum uint8");
}

}  // namespace
}  // namespace moesaic
