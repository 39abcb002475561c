#include "moesaic/codec/gradient.h"

#include "moesaic/codec/entropy.h"
#include "moesaic/codec/exponent_shift.h"
#include "moesaic/codec/gradient_format.h"
#include "moesaic/codec/int8.h"
#include "tests/codec/every_target.h"
#include "tests/codec/gradients.h"

namespace moesaic::codec {
namespace {

using Pieces = std::vector<GradientPiece>;

TEST(ExponentShift, EqualsTheOracleAndComesBackForEveryPatternAndPrediction) {
  const Words all = all_patterns();
  std::vector<std::int16_t> columns(all.size());
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<std::int16_t>(i * 37 % 256) - 128;
  for_every_target([&] {
    for (int row = -130; row <= 1150; row += 23) {
      const auto scale = static_cast<std::int16_t>(row);
      const std::size_t n = all.size() - static_cast<std::size_t>(row & 31);  // any tail
      const std::span from(all.data(), n);
      Words shifted(n), expected(n), back(n), expected_back(n);
      shift_exponents(from, scale, columns.data(), shifted.data());
      reference::shift_exponents(from, scale, columns.data(), expected.data());
      ASSERT_EQ(shifted, expected) << row;
      unshift_exponents(shifted, scale, columns.data(), back.data());
      reference::unshift_exponents(shifted, scale, columns.data(), expected_back.data());
      ASSERT_TRUE(std::ranges::equal(back, from)) << row;
      ASSERT_EQ(back, expected_back) << row;
    }
  });
}

TEST(ExponentShift, PutsAnExponentThatIsAsPredictedInTheMiddle) {
  const Words one = {0x3f80, 0xbfff, 0x4000, 0x0000, 0x8001};  // exponents 127, 127, 128, 0, 0
  const std::vector<std::int16_t> columns = {8, 9, 8, 8, 8};
  Words shifted(one.size());
  reference::shift_exponents(one, 127 * 4 - 8, columns.data(), shifted.data());
  EXPECT_EQ(shifted, (Words{128 << 7, 0x8000 | 128 << 7 | 0x7f, 129 << 7, 0x0000, 0x8001}));
}

// Pieces that begin and end inside rows and matrices, small matrices, vectors, an empty piece.
Pieces mixed_pieces() {
  return {{70'001, 96, 200, 12'345},
          {777, 1, 777, 0},
          {0, 5, 5, 3},
          {33'333, 300, 77, 76},
          {5'000, 10'000, 1, 9}};
}

Words gradients_of(const Pieces& pieces, std::uint64_t dead_every = 0) {
  Words words;
  for (const GradientPiece& piece : pieces) {
    const Words more = gradients(piece, 1, dead_every);
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

TEST(GradientScales, SurviveTheirBytesAndShiftsComeBackFromAnyWord) {
  const Pieces pieces = mixed_pieces();
  const Words words = gradients_of(pieces, 3);
  const auto scales = GradientScales::measure(pieces, words);
  std::vector<std::uint8_t> bytes, again;
  scales.append_to(bytes);
  EXPECT_LE(bytes.size(), GradientScales::bytes_bound(pieces));
  std::span<const std::uint8_t> left = bytes;
  const auto read = GradientScales::read(left, words.size());
  EXPECT_TRUE(left.empty());
  read.append_to(again);
  EXPECT_EQ(again, bytes);
  for (const std::size_t begin : {0, 1, 199, 6'855, 70'000, 70'001, 100'000}) {
    for (const std::size_t n : {0, 1, 5'000, 9'000}) {
      const auto from = std::span(words).subspan(begin, n);
      Words shifted(n), same(n);
      scales.shift(begin, from, shifted.data());
      read.shift(begin, from, same.data());
      ASSERT_EQ(shifted, same) << begin;
      read.unshift(begin, shifted, shifted.data());
      ASSERT_TRUE(std::ranges::equal(shifted, from)) << begin;
    }
  }
  for (std::size_t n = 0; n < bytes.size(); n += 1 + n / 16) {
    std::span<const std::uint8_t> cut = std::span(bytes).first(n);
    EXPECT_THROW(GradientScales::read(cut, words.size()), CorruptData) << n;
  }
}

// What a receiver must get: the words, or what int8 makes of them, by chunks and their blocks.
Words received(GradientWire wire, const Words& words) {
  if (lossless(wire)) return words;
  Words expected = words;
  for (std::size_t begin = 0; begin < words.size(); begin += kMaxChunkWords) {
    const std::size_t n = std::min(kMaxChunkWords, words.size() - begin);
    const auto chunk = std::span(words).subspan(begin, n);
    Words scales(block_count(n));
    std::vector<std::int8_t> integers(n);
    if (scales.size() * 2 + n >= 2 * n) continue;  // shorter as it is
    if (!reference::quantise(chunk, scales.data(), integers.data())) continue;
    reference::dequantise(scales.data(), integers.data(), std::span(expected).subspan(begin, n));
  }
  return expected;
}

void expect_round_trip(const Words& words, const Pieces& pieces) {
  for (const GradientWire wire : kGradientWires) {
    SCOPED_TRACE(name_of(wire));
    const Bytes expected = encode(wire, words, pieces, {.unit = 7});
    EXPECT_LE(expected.size(), words.size() * 2 + words.size() / 32 + 4'000);
    for_every_target([&] {
      ASSERT_EQ(encode(wire, words, pieces, {.unit = 7}), expected);
      ASSERT_EQ(decode_words(expected, words.size(), 7), received(wire, words));
    });
  }
}

TEST(Gradient, ComesBackFromEveryWireWhateverTheWords) {
  for (const std::size_t n : {0, 1, 2, 127, 128, 129, 5'001, 65'536, 65'537}) {
    SCOPED_TRACE(n);
    const Pieces pieces = {{n, 100, 70, 33}};
    expect_round_trip(gradients(pieces[0], 1), pieces);
    expect_round_trip(noise(n, 2), pieces);
    expect_round_trip(Words(n, 0), pieces);
    expect_round_trip(Words(n, 0x8000), pieces);
  }
  expect_round_trip(all_patterns(), {{65'536, 128, 256, 0}});
}

TEST(Gradient, ComesBackFromPiecesOfAnyShapeWithDeadMatricesAndRows) {
  const Pieces pieces = mixed_pieces();
  expect_round_trip(gradients_of(pieces), pieces);
  Words words = gradients_of(pieces, 2);
  for (std::size_t i = 30'000; i < 50'000; ++i) {
    if (i / 200 % 3 != 0) words[i] = 0;
  }
  expect_round_trip(words, pieces);
}

TEST(Gradient, SmallChunksAreChunksToo) {
  const Pieces pieces = {{3'001, 64, 64, 5}};
  const Words words = gradients(pieces[0], 3);
  for (const std::size_t chunk_words : {2, 64, 130, 1'000}) {
    const GradientOptions options = {.chunk_words = chunk_words};
    EXPECT_EQ(decode_words(encode(GradientWire::kEntropy, words, pieces, options), words.size()), words);
  }
}

TEST(Gradient, EntropyUsesTheScalesOfRowsAndColumns) {
  const Pieces pieces = {{8 * 256 * 256, 256, 256, 0}};
  const Words words = gradients(pieces[0], 1);
  const auto bits = [&](std::size_t bytes) {
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(words.size());
  };
  const double with_scales = bits(encode(GradientWire::kEntropy, words, pieces).size());
  // The exponent of a normal takes 2.5 bits, 0.06 more for whole octaves; scales and heads take 0.1.
  EXPECT_LT(with_scales, 10.72);
  EXPECT_LT(with_scales + 0.8, EntropyTables::measure(words).bits_per_word());
  EXPECT_LT(bits(encode(GradientWire::kInt8, words, pieces).size()), 8.15);
  EXPECT_LT(bits(encode(GradientWire::kBf16, words, pieces).size()), 16.02);
}

TEST(Gradient, ExpertsWithoutTokensCostNextToNothing) {
  constexpr std::uint64_t kWords = 16 * 256 * 256;
  const Pieces pieces = {{kWords, 256, 256, 0}};
  const Words live = gradients(pieces[0], 1);
  Words quarter = live;
  std::fill(quarter.begin() + kWords / 4, quarter.end(), std::uint16_t{0});
  for (const GradientWire wire : kGradientWires) {
    SCOPED_TRACE(name_of(wire));
    const std::size_t none = encode(wire, Words(kWords, 0), pieces).size();
    EXPECT_LE(none, 40 + 16 * 16 + (wire == GradientWire::kEntropy ? 4 + 24 + 16 * 2 + 31 : 0));
    const auto all = static_cast<double>(encode(wire, live, pieces).size());
    EXPECT_NEAR(static_cast<double>(encode(wire, quarter, pieces).size()), all / 4, all / 200);
    Bytes room(gradient_bound(pieces, {}));
    EXPECT_EQ(encode_gradient(wire, quarter, pieces, {}, room).live_words, kWords / 4);
  }
}

TEST(Gradient, Int8LeavesWordsThatNoScaleCanCarryAsTheyAre) {
  const Pieces pieces = {{kMaxChunkWords + 500, 1, 1'000, 0}};
  for (const std::uint16_t bad : {0x7f80, 0xff80, 0x7fc1, 0xff81}) {
    Words words = gradients(pieces[0], 1);
    words[3] = bad;
    const Words got = decode_words(encode(GradientWire::kInt8, words, pieces), words.size());
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + kMaxChunkWords, words.begin()));
    EXPECT_EQ(got, received(GradientWire::kInt8, words));
  }
}

TEST(Gradient, EveryBitOfAMessageIsGuarded) {
  const Pieces pieces = {{600, 2, 100, 7}, {4'200, 64, 64, 10}};
  Words words = gradients_of(pieces);
  std::fill(words.begin() + 1'000, words.begin() + 1'400, std::uint16_t{0});
  for (const GradientWire wire : kGradientWires) {
    SCOPED_TRACE(name_of(wire));
    const Bytes good = encode(wire, words, pieces, {.unit = 3, .chunk_words = 2'000});
    for (std::size_t n = 0; n < good.size(); n += 1 + n / 50) {
      EXPECT_THROW(
          decode_words(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n)), words.size(), 3),
          CorruptData);
    }
    for (std::size_t at = 0; at < good.size(); ++at) {
      Bytes bad = good;
      bad[at] ^= std::byte{1} << at % 8;
      EXPECT_THROW(decode_words(bad, words.size(), 3), CorruptData) << at;
    }
    Bytes longer = good;
    longer.push_back(std::byte{0});
    EXPECT_THROW(decode_words(longer, words.size(), 3), CorruptData);
    EXPECT_THROW(decode_words(good, words.size(), 4), CorruptData);
    EXPECT_THROW(decode_words(good, words.size() + 1, 3), CorruptData);
  }
}

TEST(Gradient, RefusesWhatTheCallerGotWrong) {
  const Words words(100);
  EXPECT_THROW(encode(GradientWire::kBf16, words, {{99, 1, 99, 0}}), InvalidArgument);
  EXPECT_THROW(encode(GradientWire::kBf16, words, {{100, 0, 99, 0}}), InvalidArgument);
  EXPECT_THROW(encode(GradientWire::kBf16, words, {{100, 1, 100, 0}}, {.chunk_words = 63}), InvalidArgument);
  EXPECT_THROW(gradient_bound(Pieces{{~std::uint64_t{0}, 64, 64, 0}}, {}), InvalidArgument);
  Bytes small(100);
  EXPECT_THROW(encode_gradient(GradientWire::kBf16, words, Pieces{{100, 1, 100, 0}}, {}, small),
               InvalidArgument);
}

TEST(Gradient, WiresHaveNames) {
  for (const GradientWire wire : kGradientWires) EXPECT_EQ(gradient_wire_from_name(name_of(wire)), wire);
  EXPECT_EQ(name_of(GradientWire::kInt8), "int8");
  EXPECT_THROW(gradient_wire_from_name("int4"), InvalidArgument);
}

}  // namespace
}  // namespace moesaic::codec
