#include "moesaic/kernels/convert.h"

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "tests/kernels/inputs.h"

namespace moesaic::kernels {
namespace {

TEST(Convert, EqualsTheOracleForEveryPairAndLength) {
  for_every_target([] {
    for (const DType from : {DType::kF32, DType::kBF16}) {
      for (const DType to : {DType::kF32, DType::kBF16}) {
        for (const std::int64_t n : kWidths) {
          const Rows source = random_rows(from, n, 12);
          Rows fast(to, n), expected(to, n);
          convert(from, source.data(), to, fast.data(), n);
          reference::convert(from, source.data(), to, expected.data(), n);
          ASSERT_EQ(fast, expected) << name_of(from) << " to " << name_of(to) << ", n " << n;
          for (std::int64_t i = 0; i < n; ++i) ASSERT_FALSE(std::isnan(fast.at(i)));
        }
      }
    }
  });
}

TEST(Convert, EveryBf16SurvivesTheRoundTrip) {
  for_every_target([] {
    std::vector<std::uint16_t> all(65536), back(65536, 0x1234);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) all[bits] = static_cast<std::uint16_t>(bits);
    std::vector<float> wide(65536);
    convert(DType::kBF16, all.data(), DType::kF32, wide.data(), 65536);
    convert(DType::kF32, wide.data(), DType::kBF16, back.data(), 65536);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const bool nan = (bits & 0x7fff) > 0x7f80;
      ASSERT_EQ(back[bits], nan ? bits | 0x40 : bits) << std::hex << bits;
    }
  });
}

// Every upper half with lower halves around a tie: rounding, carries into the exponent, overflow to inf,
// NaNs.
TEST(Convert, RoundsEveryBf16NeighbourhoodLikeTheOneElementConversion) {
  for_every_target([] {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      std::vector<float> wide(65536);
      std::vector<std::uint16_t> narrow(65536, 0x1234);
      for (std::uint32_t upper = 0; upper < 65536; ++upper)
        wide[upper] = std::bit_cast<float>(upper << 16 | lower);
      convert(DType::kF32, wide.data(), DType::kBF16, narrow.data(), 65536);
      for (std::uint32_t upper = 0; upper < 65536; ++upper) {
        ASSERT_EQ(narrow[upper], to_bf16(wide[upper]).bits) << std::hex << (upper << 16 | lower);
      }
    }
  });
}

TEST(Convert, RefusesOtherDtypesAndSaysWhichSide) {
  try {
    convert(DType::kF32, nullptr, DType::kI64, nullptr, 0);
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("convert, target: got dtype int64"), std::string::npos) << e.what();
  }
  EXPECT_THROW(convert(DType::kU8, nullptr, DType::kF32, nullptr, 0), InvalidArgument);
}

}  // namespace
}  // namespace moesaic::kernels
