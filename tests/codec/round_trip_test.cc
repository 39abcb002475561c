// Every method from end to end: sizes, patterns, sequences of steps, slices.
#include <algorithm>

#include "moesaic/codec/difference.h"
#include "moesaic/codec/wire.h"
#include "tests/codec/ends.h"

namespace moesaic::codec {
namespace {

constexpr std::size_t kChunk = 256;

class RoundTrip : public testing::TestWithParam<Method> {};

INSTANTIATE_TEST_SUITE_P(Methods, RoundTrip, testing::ValuesIn(kMethods),
                         [](const auto& method) { return std::string(name_of(method.param)); });

TEST_P(RoundTrip, OfEverySizeThroughEveryKindOfStep) {
  for (const std::size_t n :
       std::initializer_list<std::size_t>{0, 1, 2, 7, kChunk - 1, kChunk, kChunk + 1, 1009, 4 * kChunk}) {
    SCOPED_TRACE(n);
    Ends ends(GetParam(), n, {.unit = 9, .dtype = DType::kBF16, .chunk_words = kChunk, .key = false});
    Words words = weights(n, 1);
    ends.send(words);                                                  // the first: a key
    for (int i = 0; i < 3; ++i) ends.send(words = stepped(words, 2));  // training
    ends.send(words);                                                  // nothing changed
    ends.send(words = stepped(words, 3, 0.01f));                       // hardly anything did
    ends.send(words = noise(n, 4));                                    // nothing stayed, any pattern
    ends.send(words = stepped(words, 5));
    ends.options.key = true;
    ends.send(words = stepped(words, 6));
    ends.options.key = false;
    ends.send(words = stepped(words, 7));
    EXPECT_EQ(ends.sender.epoch(), 10u);
  }
}

TEST_P(RoundTrip, OfEveryPatternAgainstEveryExponentBoundary) {
  const Words current = all_patterns();
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const std::uint32_t edge : {exponent << 7, exponent << 7 | 0x7f}) {
      for (const std::uint32_t sign : {0u, 0x8000u}) {
        if (needs(GetParam()) == Keeps::kNothing && exponent > 0) return;  // no reference, no boundary
        Reference reference(needs(GetParam()), 65536);
        Update held;
        held.hash = 1;
        reference.commit(held, Words(65536, static_cast<std::uint16_t>(edge | sign)));
        const Sent sent = encode(GetParam(), reference, current);
        ASSERT_EQ(decode(reference, sent.bytes).words, sent.received) << std::hex << (edge | sign);
        if (lossless(GetParam())) {
          ASSERT_EQ(sent.received, current);
        }
      }
    }
  }
}

// As current and as reference: NaN payloads, zeros of both signs, subnormals, infinities, signs that flip.
TEST_P(RoundTrip, OfSpecialValuesIntoEachOther) {
  const Words special = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080, 0x3f80, 0xbf80,
                         0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xff81, 0x7fc0, 0xffc0, 0x7fff, 0xffff};
  Words before, now;
  for (const std::uint16_t a : special) {
    for (const std::uint16_t b : special) {
      before.push_back(a);
      now.push_back(b);
    }
  }
  Ends ends(GetParam(), now.size());
  for (int i = 0; i < 3; ++i) {
    ends.send(before);
    ends.send(now);
  }
}

TEST_P(RoundTrip, CostsAtMostAThousandthMoreThanTheWordsWhereNothingCanBeSaved) {
  const std::size_t n = 300000;
  Ends ends(GetParam(), n);
  for (int i = 0; i < 2; ++i) {
    const Bytes bytes = ends.send(noise(n, static_cast<std::uint64_t>(i)));
    EXPECT_LT(static_cast<double>(bytes.size()), 1.001 * 2 * n) << "message " << i;
  }
}

TEST_P(RoundTrip, InSlicesIsTheSameMessageAndDecodesAsItArrives) {
  const std::size_t n = 5 * kChunk + 17;
  const EncodeOptions options = {.unit = 1, .dtype = DType::kBF16, .chunk_words = kChunk, .key = false};
  const Words words = weights(n, 1), next_words = stepped(words, 2);
  Ends ends(GetParam(), n, options);
  ends.send(words);
  const Sent whole = encode(GetParam(), ends.sender, next_words, options);

  Bytes room(message_bound(n, options));
  Words received(lossless(GetParam()) ? 0 : n);
  Encoder encoder(GetParam(), ends.sender, next_words, options, room, received);
  Words decoded(n);
  Decoder decoder(ends.receiver, {.unit = 1, .dtype = DType::kBF16}, decoded);
  std::size_t bytes = 0, slices = 0, final_words = 0;
  EXPECT_THROW(encoder.update(), InvalidArgument);
  EXPECT_THROW(decoder.update(), InvalidArgument);
  for (auto slice = encoder.next(); !slice.empty(); slice = encoder.next()) {
    ASSERT_EQ(slice.data(), room.data() + bytes);
    bytes += slice.size();
    // All but the last byte is not enough for this chunk.
    ASSERT_EQ(decoder.advance(std::span(room).first(bytes - 1)), final_words);
    final_words = std::min(n, final_words + kChunk);
    ASSERT_EQ(decoder.advance(std::span(room).first(bytes)), final_words);
    ++slices;
    if (final_words < n) {
      ASSERT_THROW(decoder.update(), InvalidArgument);
    }
  }
  EXPECT_EQ(slices, 6u);
  room.resize(bytes);
  EXPECT_EQ(room, whole.bytes);
  EXPECT_EQ(decoded, whole.received);
  EXPECT_TRUE(decoder.update() == encoder.update());
  EXPECT_TRUE(encoder.next().empty());
}

TEST_P(RoundTrip, ReadsAMessageThatLiesAtAnyByte) {
  Ends ends(GetParam(), 1009);
  const Words words = weights(1009, 1);
  ends.send(words);
  const Sent sent = encode(GetParam(), ends.sender, stepped(words, 2));
  for (std::size_t shift = 0; shift < 4; ++shift) {
    Bytes moved(shift);
    moved.insert(moved.end(), sent.bytes.begin(), sent.bytes.end());
    EXPECT_EQ(decode(ends.receiver, std::span(moved).subspan(shift)).words, sent.received);
  }
}

TEST_P(RoundTrip, GivesTheSameBytesOnEveryInstructionSet) {
  Bytes first;
  for_every_target([&] {
    Ends ends(GetParam(), 3001);
    const Words words = weights(3001, 1);
    ends.send(words);
    const Bytes bytes = ends.send(stepped(words, 2));
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  });
}

// Weights that keep moving the way they went.
Words drift(const Words& words, std::uint64_t seed, float size) {
  Words now = words;
  const std::uint64_t key = random_key(seed, "drift");
  for (std::size_t i = 0; i < now.size(); ++i) {
    const float step = size * random_normal(1, i) * (1 + 0.2f * random_normal(key, i));
    now[i] = to_bf16(to_float(BF16{now[i]}) + step).bits;
  }
  return now;
}

TEST(Tables, TravelOnlyWhenTheyChange) {
  for (const Method method : {Method::kResidual, Method::kMomentum}) {
    Ends ends(method, 20000);
    Words words = weights(20000, 1);
    ends.send(words);
    std::size_t sent = 0;
    for (std::uint64_t step = 0; step < 20; ++step) {
      const Header header = read_header(ends.send(words = drift(words, step, 1e-4f)));
      EXPECT_NE(header.tables_crc, 0u);
      sent += header.tables_bytes > 0;
    }
    EXPECT_GE(sent, 2u) << name_of(method);  // the first, and one every 16 commits
    EXPECT_LE(sent, 5u) << name_of(method);
    // The learning rate jumps: yesterday's tables would cost too much.
    EXPECT_GT(read_header(ends.send(words = drift(words, 99, 2e-3f))).tables_bytes, 0u) << name_of(method);
  }
}

TEST(Tables, ThatTheReceiverDoesNotHoldAreAReferenceThatDiffers) {
  Ends ends(Method::kResidual, 20000);
  Words words = weights(20000, 1);
  for (std::uint64_t step = 0; step < 2; ++step) ends.send(words = drift(words, step, 1e-4f));
  const Sent last = encode(Method::kResidual, ends.sender, words = drift(words, 2, 1e-4f));
  Update other = last.update;
  other.tables = {1, 2, 3};
  ends.sender.commit(last.update, words);
  ends.receiver.commit(other, words);
  const Sent sent = encode(Method::kResidual, ends.sender, drift(words, 3, 1e-4f));
  ASSERT_EQ(read_header(sent.bytes).tables_bytes, 0u);
  EXPECT_THROW(decode(ends.receiver, sent.bytes), ReferenceDiffers);
}

TEST(Momentum, PredictsWeightsThatKeepMoving) {
  std::size_t bytes[2];
  for (const Method method : {Method::kResidual, Method::kMomentum}) {
    Ends ends(method, 60000);
    Words words = weights(60000, 1);
    for (std::uint64_t step = 0; step < 6; ++step) {
      bytes[method == Method::kMomentum] = ends.send(words = drift(words, step, 3e-4f)).size();
    }
  }
  EXPECT_LT(bytes[1], bytes[0] * 8 / 10);
}

// From a list of a few words to a stream of nearly all, a chunk never takes more than either would.
TEST(Modes, TheSmallestIsTaken) {
  const std::size_t n = 8000;
  const Words before = weights(n, 1);
  Reference reference(Keeps::kWords, n);
  reference.commit({.epoch = 0, .key = true, .hash = 1, .tables = {}}, before);
  std::size_t lists = 0, streams = 0;
  for (const float share : {0.001f, 0.002f, 0.005f, 0.01f, 0.02f, 0.05f, 0.1f, 0.3f}) {
    const Words now = stepped(before, 2, share, 1e-4f);
    std::size_t changed = 0;
    for (std::size_t i = 0; i < n; ++i) changed += now[i] != before[i];
    const auto tables = DifferenceTables::measure(Predictor::kReference, before, {}, now);
    std::vector<std::uint8_t> stream(encoded_bound(n));
    stream.resize(encode_difference(tables, before, {}, now, stream));
    const Bytes message = encode(Method::kResidual, reference, now).bytes;
    const Header header = read_header(message);
    const ChunkHeader chunk =
        read_chunk_header(std::span(message).subspan(kHeaderBytes + header.tables_bytes));
    EXPECT_EQ(chunk.length, std::min(changed * 4, stream.size())) << share;
    lists += chunk.mode == ChunkMode::kSparse;
    streams += chunk.mode == ChunkMode::kResidual;
  }
  EXPECT_GE(lists, 2u);
  EXPECT_GE(streams, 2u);
}

// The previous differences are a lie: momentum must not cost more than residual does.
TEST(Momentum, IsLeftAloneWhereItMisleads) {
  std::size_t bytes[2];
  for (const Method method : {Method::kResidual, Method::kMomentum}) {
    Ends ends(method, 60000);
    Words words = weights(60000, 1);
    for (std::uint64_t step = 0; step < 5; ++step) ends.send(words = drift(words, step, 3e-4f));
    bytes[method == Method::kMomentum] = ends.send(stepped(words, 9, 0.1f, 1e-5f)).size();
  }
  EXPECT_LE(bytes[1], bytes[0] * 101 / 100);
}

TEST(RoundTripOfInt8, GivesTheSenderWhatItsReceiversHaveAlsoInPlace) {
  const Words words = weights(1009, 1);
  const Reference reference(Keeps::kNothing, 1009);
  const Sent apart = encode(Method::kInt8, reference, words);
  EXPECT_NE(apart.received, words);
  Words in_place = words;
  Bytes room(message_bound(1009, {}));
  Encoder encoder(Method::kInt8, reference, in_place, {}, room, in_place);
  const auto message = encoder.all();
  EXPECT_TRUE(std::ranges::equal(message, apart.bytes));
  EXPECT_EQ(in_place, apart.received);
  EXPECT_EQ(decode(reference, message).words, in_place);
}

TEST(RoundTripOfRaw, CarriesOtherElementsAsPairsOfWords) {
  const Words words = noise(2 * 501, 1);  // 501 of fp32
  const Reference reference(Keeps::kNothing, words.size());
  const EncodeOptions options = {.unit = 4, .dtype = DType::kF32};
  const Sent sent = encode(Method::kRaw, reference, words, options);
  EXPECT_EQ(decode(reference, sent.bytes, {.unit = 4, .dtype = DType::kF32}).words, words);
}

}  // namespace
}  // namespace moesaic::codec
