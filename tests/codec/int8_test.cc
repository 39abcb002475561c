#include "moesaic/codec/int8.h"

#include <cmath>

#include "tests/codec/ends.h"

namespace moesaic::codec {
namespace {

float value(std::uint16_t bits) { return to_float(BF16{bits}); }

TEST(Int8, ScaleIsTheLeastThatReachesTheLargestMagnitude) {
  for (std::uint32_t magnitude = 0; magnitude < 0x7f80; ++magnitude) {
    const std::uint16_t scale = block_scale(static_cast<std::uint16_t>(magnitude));
    const double largest = value(static_cast<std::uint16_t>(magnitude));
    ASSERT_GE(127.0 * value(scale), largest) << magnitude;
    if (scale > 0) {
      ASSERT_LT(127.0 * value(static_cast<std::uint16_t>(scale - 1)), largest) << magnitude;
    }
  }
}

TEST(Int8, EqualsTheOracleForEveryLength) {
  for_every_target([] {
    for (const std::size_t n : {0, 1, 7, 127, 128, 129, 1009, 4096}) {
      Words words = weights(n, 1);
      if (n > 300) std::fill(words.begin() + 128, words.begin() + 256, std::uint16_t{0x8000});
      Words scales(block_count(n), 1), expected_scales(block_count(n), 2);
      std::vector<std::int8_t> integers(n, 1), expected(n, 2);
      ASSERT_TRUE(quantise(words, scales.data(), integers.data()));
      ASSERT_TRUE(reference::quantise(words, expected_scales.data(), expected.data()));
      ASSERT_EQ(scales, expected_scales);
      ASSERT_EQ(integers, expected);
      Words back(n), expected_back(n);
      dequantise(scales.data(), integers.data(), back);
      reference::dequantise(scales.data(), integers.data(), expected_back);
      ASSERT_EQ(back, expected_back);
    }
  });
}

TEST(Int8, ComesBackWithinHalfAStepOfTheScale) {
  for_every_target([] {
    for (const int exponent : {-133, -126, -60, 0, 60, 119}) {
      Words words(128);
      for (std::size_t i = 0; i < 128; ++i) {
        words[i] = to_bf16(std::ldexp(static_cast<float>(i * 2) - 127.0f, exponent)).bits;
      }
      std::uint16_t scale;
      std::vector<std::int8_t> integers(128);
      ASSERT_TRUE(quantise(words, &scale, integers.data()));
      Words back(128);
      dequantise(&scale, integers.data(), back);
      for (std::size_t i = 0; i < 128; ++i) {
        const double exact = static_cast<double>(integers[i]) * value(scale);
        ASSERT_LE(std::abs(exact - value(words[i])), 0.5 * value(scale)) << exponent << ", " << i;
        ASSERT_EQ(back[i], to_bf16(static_cast<float>(exact)).bits);
      }
    }
  });
}

TEST(Int8, RefusesWhatNoScaleCanCarry) {
  for_every_target([] {
    for (const std::uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0xff81}) {
      for (const std::size_t n : {128, 200}) {
        Words words = weights(n, 2);
        words[n - 1] = bad;
        Words scales(block_count(n));
        std::vector<std::int8_t> integers(n);
        EXPECT_FALSE(quantise(words, scales.data(), integers.data()));
        EXPECT_FALSE(reference::quantise(words, scales.data(), integers.data()));
      }
    }
  });
}

}  // namespace
}  // namespace moesaic::codec
