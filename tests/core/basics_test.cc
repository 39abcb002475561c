#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#include "moesaic/core/bf16.h"
#include "moesaic/core/buffer.h"
#include "moesaic/core/crc32c.h"
#include "moesaic/core/dtype.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

TEST(BF16, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const BF16 value{static_cast<std::uint16_t>(bits)};
    const BF16 back = to_bf16(to_float(value));
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(back)));
    } else {
      EXPECT_EQ(back.bits, value.bits);
    }
  }
}

TEST(BF16, TiesRoundToEven) {
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
}

TEST(Crc32c, MatchesTheStandardCheckValue) {
  constexpr std::string_view text = "123456789";
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(crc32c(bytes), 0xE3069283u);
  EXPECT_EQ(crc32c(bytes.subspan(4), crc32c(bytes.first(4))), 0xE3069283u);
}

TEST(DType, NamesRoundTripAndUnknownOnesListTheAllowed) {
  for (const auto dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI64, DType::kU8, DType::kBool}) {
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  }
  try {
    dtype_from_name("float");
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("fp32, bf16"), std::string::npos) << e.what();
  }
}

TEST(Buffer, IsAlignedAndMayBeEmpty) {
  const Buffer buffer(3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

}  // namespace
}  // namespace moesaic
