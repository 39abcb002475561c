#include "moesaic/codec/entropy.h"

#include "moesaic/codec/reference.h"
#include "moesaic/core/error.h"
#include "tests/codec/targets.h"

namespace moesaic::codec {
namespace {

Bytes8 encoded(const EntropyTables& tables, const Words16& words) {
  Bytes8 bytes(entropy_bound(words.size()));
  bytes.resize(encode_entropy(tables, words, bytes));
  return bytes;
}

void expect_lossless(const EntropyTables& tables, const Words16& words) {
  Bytes8 expected(entropy_bound(words.size()));
  expected.resize(reference::encode_entropy(tables, words, expected));
  ASSERT_EQ(encoded(tables, words), expected);
  Words16 decoded(words.size(), 0x5a5a), by_oracle(words.size(), 0xa5a5);
  decode_entropy(tables, expected, decoded);
  ASSERT_EQ(decoded, words);
  reference::decode_entropy(tables, expected, by_oracle);
  ASSERT_EQ(by_oracle, words);
}

TEST(Entropy, IsLosslessAndTheSameBytesOnEveryTargetAtAnySize) {
  for_every_target([] {
    for (const std::size_t n : kSizes) {
      for (const Words16& words : {weights(n, 1), noise(n, 2), Words16(n, 0), Words16(n, 0xff80)}) {
        expect_lossless(EntropyTables::measure(words), words);
      }
    }
  });
}

TEST(Entropy, CodesEveryPattern) {
  Words16 all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i * 40503);
  for_every_target([&] {
    expect_lossless(EntropyTables::measure(all), all);
    expect_lossless(EntropyTables::measure(weights(4096, 1)), all);
    expect_lossless(EntropyTables::measure(Words16(100, 0)), all);
  });
}

TEST(Entropy, TakesAboutTheEntropyOfExponentsAndAByte) {
  const Words16 words = weights(60000, 1);  // exponents of probability 1/2, 1/4, ...: two bits
  const EntropyTables tables = EntropyTables::measure(words);
  EXPECT_NEAR(tables.bits_per_word(), 10.0, 0.03);
  EXPECT_NEAR(static_cast<double>(encoded(tables, words).size()) * 8 / 60000, 10.0, 0.05);
  const Words16 zeros(60000, 0);
  EXPECT_LT(encoded(EntropyTables::measure(zeros), zeros).size() * 8, 8.05 * 60000);
}

TEST(Entropy, TablesSurviveTheirBytesAndRefuseDamage) {
  Bytes8 bytes, again;
  EntropyTables::measure(weights(5000, 1)).append_to(bytes);
  ASSERT_EQ(bytes.size(), EntropyTables::kBytes);
  EntropyTables::read(bytes).append_to(again);
  EXPECT_EQ(again, bytes);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW(EntropyTables::read(std::span(bytes).first(n)), CorruptData);
  }
  Bytes8 bad = bytes;
  bad[0] = 0;
  EXPECT_THROW(EntropyTables::read(bad), CorruptData);
  bad[0] = 243;
  EXPECT_THROW(EntropyTables::read(bad), CorruptData);
  bad = bytes;
  bad[1] = bad[2] = 0;
  EXPECT_THROW(EntropyTables::read(bad), CorruptData);
  bad = bytes;
  bad[2] = bad[4] = 0xff;
  EXPECT_THROW(EntropyTables::read(bad), CorruptData);
}

TEST(Entropy, DamagedStreamsAreRefusedOrDecodedAlikeByAll) {
  std::mt19937 random(11);
  const Words16 words = weights(700, 1);
  const EntropyTables tables = EntropyTables::measure(words);
  const Bytes8 good = encoded(tables, words);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    Bytes8 bad = good;
    if (round % 2 == 0) {
      bad.resize(random() % good.size());
    } else {
      bad[words.size() + random() % (good.size() - words.size())] ^=
          static_cast<std::uint8_t>(1u << random() % 8);
    }
    const auto outcome = [&](auto decode) {
      Words16 out(words.size());
      try {
        decode(tables, std::span<const std::uint8_t>(bad), out);
      } catch (const CorruptData&) {
        out.clear();
      }
      return out;
    };
    const Words16 expected = outcome(reference::decode_entropy);
    refused += expected.empty();
    for_every_target([&] { ASSERT_EQ(outcome(decode_entropy), expected); });
  }
  EXPECT_GT(refused, 380);
}

}  // namespace
}  // namespace moesaic::codec
