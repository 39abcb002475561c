#include "moesaic/codec/difference.h"

#include "moesaic/codec/reference.h"
#include "moesaic/core/error.h"
#include "tests/codec/targets.h"

namespace moesaic::codec {
namespace {

struct Message {
  Words16 reference, current;
  Bytes8 previous;  // empty for kReference
  DifferenceTables tables;

  Message(Predictor predictor, Words16 before, Words16 from, Words16 to)
      : reference(std::move(from)), current(std::move(to)) {
    if (predictor == Predictor::kMomentum) {
      previous.resize(previous_bytes(current.size()));
      update_previous(before, reference, previous);
    }
    tables = DifferenceTables::measure(predictor, reference, previous, current);
  }
};

Bytes8 encoded(const Message& m) {
  Bytes8 bytes(encoded_bound(m.current.size()));
  bytes.resize(encode_difference(m.tables, m.reference, m.previous, m.current, bytes));
  return bytes;
}

Bytes8 oracle_encoded(const Message& m) {
  Bytes8 bytes(encoded_bound(m.current.size()));
  bytes.resize(reference::encode_difference(m.tables, m.reference, m.previous, m.current, bytes));
  return bytes;
}

// Both ends, by the oracle and by the vectors, give the same bytes and the same words.
void expect_lossless(const Message& m) {
  const Bytes8 expected = oracle_encoded(m);
  ASSERT_EQ(encoded(m), expected);
  Words16 decoded(m.current.size(), 0x5a5a), by_oracle(m.current.size(), 0xa5a5);
  decode_difference(m.tables, m.reference, m.previous, expected, decoded);
  ASSERT_EQ(decoded, m.current);
  reference::decode_difference(m.tables, m.reference, m.previous, expected, by_oracle);
  ASSERT_EQ(by_oracle, m.current);
}

constexpr Predictor kBoth[] = {Predictor::kReference, Predictor::kMomentum};

TEST(Difference, IsLosslessAndTheSameBytesOnEveryTargetAtAnySize) {
  for_every_target([] {
    for (const Predictor predictor : kBoth) {
      for (const std::size_t n : kSizes) {
        for (const unsigned size : {0u, 1u, 6u, 300u}) {
          const Words16 before = weights(n, 1), from = stepped(before, size, 2), to = stepped(from, size, 3);
          expect_lossless(Message(predictor, before, from, to));
        }
      }
    }
  });
}

TEST(Difference, CodesEveryPatternAgainstSpecialOnes) {
  Words16 all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for_every_target([&] {
    for (const Predictor predictor : kBoth) {
      // Zeros of both signs, subnormals, one, infinities, NaNs with a payload.
      for (const int special : {0x0000, 0x8000, 0x0001, 0x807f, 0x3f80, 0x7f80, 0xff80, 0x7fc1, 0xffff}) {
        const Words16 from(all.size(), static_cast<std::uint16_t>(special));
        expect_lossless(Message(predictor, noise(all.size(), 9), from, all));
      }
    }
  });
}

TEST(Difference, CodesNoiseAgainstNoise) {
  for_every_target([] {
    for (const Predictor predictor : kBoth) {
      expect_lossless(Message(predictor, noise(8000, 1), noise(8000, 2), noise(8000, 3)));
    }
  });
}

// Tables that fit nothing still carry everything: all sizes of frequencies, every width of bucket.
TEST(Difference, CodesWithTablesOfAnotherMessage) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    BucketCode code;
    for (std::size_t c = 0; c < BucketCode::kMaxClasses; ++c) {
      BucketClass bucket_class;
      if (c % 3 == 0) {  // one symbol takes all, or nearly
        const std::uint16_t free[] = {65532, 65531, 64001, 64000, 63999, 32768, 32767, 1};
        bucket_class.frequency[random() % 4] = free[random() % 8];
      } else {
        std::uint32_t left = 65536 - 4 * 16, end = 0;
        for (int b = 0; b < BucketClass::kNumBuckets; ++b) {
          const auto width = static_cast<std::uint8_t>(random() % 5);
          end += 1u << width;
          const std::uint32_t most = left >> width;
          const std::uint32_t frequency = 1 + random() % std::max(most / 2, 1u);
          bucket_class.width_log2[b] = width;
          bucket_class.frequency[b] = static_cast<std::uint16_t>(frequency);
          left -= std::min(left, frequency << width);
        }
      }
      code.classes.push_back(bucket_class);
    }
    for (const Predictor predictor : kBoth) {
      Bytes8 bytes = {static_cast<std::uint8_t>(predictor), static_cast<std::uint8_t>(110 + random() % 15)};
      const std::size_t contexts = predictor == Predictor::kMomentum ? 64 : 16;
      for (std::size_t i = 0; i < contexts / 2; ++i) {
        bytes.push_back(static_cast<std::uint8_t>(random() % 12 | random() % 12 << 4));
      }
      code.append_to(bytes);
      for_every_target([&] {
        const Words16 before = weights(2000, round), from = stepped(before, 4, 2), to = stepped(from, 4, 3);
        Message m(predictor, before, from, to);
        m.tables = DifferenceTables::read(bytes);
        expect_lossless(m);
      });
    }
  }
}

TEST(Difference, TablesSurviveTheirBytesAndStayWithinTheirBound) {
  for (const Predictor predictor : kBoth) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{300000}}) {
      const Words16 before = weights(n, 1), from = stepped(before, 3, 2), to = stepped(from, 3, 3);
      const Message m(predictor, before, from, to);
      Bytes8 bytes, again;
      m.tables.append_to(bytes);
      EXPECT_LE(bytes.size(), DifferenceTables::kMaxBytes);
      DifferenceTables::read(bytes).append_to(again);
      EXPECT_EQ(again, bytes);
    }
  }
}

TEST(Difference, TablesRefuseEveryShortenedAndManyDamagedForms) {
  const Words16 before = weights(5000, 1), from = stepped(before, 3, 2), to = stepped(from, 3, 3);
  Bytes8 bytes;
  Message(Predictor::kMomentum, before, from, to).tables.append_to(bytes);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THROW(DifferenceTables::read(std::span(bytes).first(n)), CorruptData);
  }
  const auto with = [&](std::size_t at, int value) {
    Bytes8 damaged = bytes;
    damaged[at] = static_cast<std::uint8_t>(value);
    return damaged;
  };
  EXPECT_THROW(DifferenceTables::read(with(0, 2)), CorruptData);     // predictor
  EXPECT_THROW(DifferenceTables::read(with(2, 0xff)), CorruptData);  // class 15
  EXPECT_THROW(DifferenceTables::read(with(34, 13)), CorruptData);   // number of classes
  EXPECT_THROW(DifferenceTables::read(with(34, 0)), CorruptData);
  EXPECT_THROW(DifferenceTables::read(with(35, 0xaa)), CorruptData);  // two buckets of 2^10, not on a step
  Bytes8 zero = bytes;
  zero[37] = zero[38] = 0;
  EXPECT_THROW(DifferenceTables::read(zero), CorruptData);  // a frequency of 0
  zero[37] = zero[38] = 255;
  EXPECT_THROW(DifferenceTables::read(zero), CorruptData);  // more than 65535 slots
  zero = bytes;
  zero.push_back(0);
  EXPECT_THROW(DifferenceTables::read(zero), CorruptData);
}

// Whatever the bytes, a decoder returns or throws CorruptData, the same on every target as the oracle.
TEST(Difference, DamagedStreamsAreRefusedOrDecodedAlikeByAll) {
  std::mt19937 random(11);
  for (const Predictor predictor : kBoth) {
    const Words16 before = weights(700, 1), from = stepped(before, 40, 2), to = stepped(from, 40, 3);
    const Message m(predictor, before, from, to);
    const Bytes8 good = encoded(m);
    int refused = 0;
    for (int round = 0; round < 400; ++round) {
      Bytes8 bad = good;
      if (round % 4 == 0) {
        bad.resize(random() % good.size());
      } else if (round % 4 == 1) {
        for (auto& byte : bad) byte = static_cast<std::uint8_t>(random());
        if (round % 8 == 1) bad[1] = bad[2] = bad[3] = 0;
      } else {
        bad[random() % good.size()] ^= static_cast<std::uint8_t>(1u << random() % 8);
      }
      const auto outcome = [&](auto decode) {
        Words16 out(to.size());
        try {
          decode(m.tables, m.reference, m.previous, std::span<const std::uint8_t>(bad), out);
        } catch (const CorruptData&) {
          out.clear();
        }
        return out;
      };
      const Words16 expected = outcome(reference::decode_difference);
      refused += expected.empty();
      for_every_target([&] { ASSERT_EQ(outcome(decode_difference), expected); });
    }
    EXPECT_GT(refused, 200);  // a literal may be any value: that is for the message's checksum
  }
}

TEST(Difference, RefusesSizesThatDoNotMatch) {
  const Words16 before = weights(64, 1), from = stepped(before, 3, 2), to = stepped(from, 3, 3);
  const Message m(Predictor::kMomentum, before, from, to);
  Bytes8 out(encoded_bound(64));
  const std::span<const std::uint16_t> reference = m.reference;
  EXPECT_THROW(encode_difference(m.tables, reference.first(63), m.previous, m.current, out), InvalidArgument);
  EXPECT_THROW(encode_difference(m.tables, reference, {}, m.current, out), InvalidArgument);
  EXPECT_THROW(encode_difference(m.tables, reference, m.previous, m.current, std::span(out).first(100)),
               InvalidArgument);
  Words16 words(1);
  EXPECT_THROW(decode_difference(m.tables, reference, m.previous, out, words), InvalidArgument);
  words.clear();
  EXPECT_THROW(decode_difference(m.tables, {}, {}, out, words), CorruptData);
}

TEST(Difference, PreviousIsUpdatedAlikeByAllForEveryDifference) {
  Words16 all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const int special : {0x0000, 0x8000, 0x3f80, 0x7fff, 0xffff}) {
    const Words16 from(all.size(), static_cast<std::uint16_t>(special));
    Bytes8 expected(previous_bytes(all.size()));
    reference::update_previous(from, all, expected);
    for_every_target([&] {
      for (const std::size_t n : {all.size(), std::size_t{4097}, std::size_t{15}, std::size_t{1}}) {
        Bytes8 previous(previous_bytes(n), 0xee);
        update_previous(std::span(from).first(n), std::span(all).first(n), previous);
        if (n % 2 == 1) {
          EXPECT_EQ(previous.back() >> 4, 0);
        }
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(nibble_at(previous, i), nibble_at(expected, i)) << i;
      }
    });
  }
  EXPECT_EQ(nibble_of(0), 0u);
  EXPECT_EQ(nibble_of(0xffff), 9u);
  EXPECT_EQ(nibble_of(0x8000), 15u);
}

// Weights that keep moving as they did cost less with momentum than without, and both far less than 16 bits.
TEST(Difference, MomentumHelpsWhereDifferencesRepeat) {
  const Words16 before = weights(60000, 1), from = stepped(before, 6, 2);
  Words16 to = from;
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = in_order(static_cast<std::uint16_t>(in_order(from[i]) + difference_of(from[i], before[i])));
  }
  const Message plain(Predictor::kReference, before, from, to), moved(Predictor::kMomentum, before, from, to);
  EXPECT_LT(encoded(plain).size() * 8, 6.0 * 60000);
  EXPECT_LT(encoded(moved).size(), encoded(plain).size() * 7 / 10);
  EXPECT_NEAR(static_cast<double>(encoded(moved).size()) * 8 / 60000, moved.tables.bits_per_word(), 0.1);
}

TEST(DifferenceTables, PriceOtherWordsByWhatTheyWouldCostAndCould) {
  const Words16 reference = weights(20000, 1), current = stepped(reference, 4, 2);
  const auto own = DifferenceTables::measure(Predictor::kReference, reference, {}, current);
  const auto same = own.price(reference, {}, current);
  EXPECT_DOUBLE_EQ(same.bits_per_word, own.bits_per_word());
  EXPECT_LE(same.attainable, same.bits_per_word);
  EXPECT_GT(same.attainable, same.bits_per_word * 0.99);
  // Read back they price alike; larger steps cost more, and more than they had to.
  std::vector<std::uint8_t> bytes;
  own.append_to(bytes);
  const Words16 farther = stepped(reference, 40, 3);
  const auto other = DifferenceTables::read(bytes).price(reference, {}, farther);
  EXPECT_GT(other.bits_per_word, same.bits_per_word);
  EXPECT_LT(other.attainable, other.bits_per_word * 0.95);
  const auto fitted = DifferenceTables::measure(Predictor::kReference, reference, {}, farther);
  EXPECT_LT(fitted.bits_per_word(), other.bits_per_word);
}

TEST(DifferenceTables, TheBestPredictorIsTheOneOfFewerBits) {
  const Words16 before = weights(60000, 1), from = stepped(before, 6, 2), elsewhere = stepped(from, 300, 3);
  Words16 onward = from;
  for (std::size_t i = 0; i < onward.size(); ++i) {
    onward[i] = in_order(static_cast<std::uint16_t>(in_order(from[i]) + difference_of(from[i], before[i])));
  }
  const auto best = [&](const Words16& held_before, const Words16& current) {
    Bytes8 previous(previous_bytes(from.size()));
    update_previous(held_before, from, previous);
    const auto tables = DifferenceTables::measure_best(from, previous, current);
    const double momentum =
        DifferenceTables::measure(Predictor::kMomentum, from, previous, current).bits_per_word();
    const double residual =
        DifferenceTables::measure(Predictor::kReference, from, {}, current).bits_per_word();
    EXPECT_DOUBLE_EQ(tables.bits_per_word(), std::min(momentum, residual));
    return tables.predictor();
  };
  EXPECT_EQ(best(before, onward), Predictor::kMomentum);
  // Previous differences far larger than those of now tell nothing.
  EXPECT_EQ(best(elsewhere, stepped(from, 2, 4)), Predictor::kReference);
}

}  // namespace
}  // namespace moesaic::codec
