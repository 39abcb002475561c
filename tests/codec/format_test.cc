// The bytes of messages, against messages written by hand from the tables of wire.h.
#include "moesaic/codec/int8.h"
#include "moesaic/codec/wire.h"
#include "tests/codec/ends.h"
#include "tests/codec/message_oracle.h"

namespace moesaic::codec {
namespace {

constexpr EncodeOptions kOptions = {
    .unit = 0x0123456789abcdef, .dtype = DType::kBF16, .chunk_words = 64, .key = false};

Words part(const Words& words, std::size_t chunk) {
  const std::size_t begin = chunk * 64, end = std::min(begin + 64, words.size());
  return Words(words.begin() + static_cast<std::ptrdiff_t>(begin),
               words.begin() + static_cast<std::ptrdiff_t>(end));
}

oracle::Message blank(Method method, const Reference& reference) {
  oracle::Message message;
  message.method = static_cast<int>(method);
  message.key = !reference.valid();
  message.unit = kOptions.unit;
  message.epoch = reference.epoch();
  message.reference_hash = reference.valid() ? reference.hash() : 0;
  message.chunk_words = 64;
  return message;
}

TEST(Format, OfNoWordsIsTheHeaderAlone) {
  const Reference reference(Keeps::kNothing, 0);
  EXPECT_EQ(encode(Method::kRaw, reference, {}, kOptions).bytes, blank(Method::kRaw, reference).bytes());
  EXPECT_EQ(blank(Method::kRaw, reference).bytes().size(), 64u);
}

TEST(Format, OfRawIsTheWordsInChunks) {
  const Words words = noise(150, 1);
  const Reference reference(Keeps::kNothing, 150);
  oracle::Message message = blank(Method::kRaw, reference);
  for (std::size_t i = 0; i < 3; ++i) {
    message.chunks.push_back({0, oracle::little_endian(part(words, i)), part(words, i)});
  }
  EXPECT_EQ(encode(Method::kRaw, reference, words, kOptions).bytes, message.bytes());
}

TEST(Format, NamesTheDtypeOfOtherElements) {
  for (const auto& [dtype, code] : {std::pair{DType::kF32, 2}, std::pair{DType::kF16, 3}}) {
    const Words words = noise(10, 2);
    const Reference reference(Keeps::kNothing, 10);
    oracle::Message message = blank(Method::kRaw, reference);
    message.dtype = code;
    message.chunks.push_back({0, oracle::little_endian(words), words});
    EncodeOptions options = kOptions;
    options.dtype = dtype;
    EXPECT_EQ(encode(Method::kRaw, reference, words, options).bytes, message.bytes());
  }
}

TEST(Format, OfInt8IsScalesThenIntegersAndRawWhereThatCannotBe) {
  Words words = weights(128 + 64, 3);
  words[64] = 0x7f80;  // chunk 1 goes as it is
  const Reference reference(Keeps::kNothing, words.size());
  oracle::Message message = blank(Method::kInt8, reference);
  for (std::size_t i = 0; i < 3; ++i) {
    const Words exact = part(words, i);
    if (i == 1) {
      message.chunks.push_back({0, oracle::little_endian(exact), exact});
      continue;
    }
    std::uint16_t scale;
    std::vector<std::int8_t> integers(exact.size());
    ASSERT_TRUE(reference::quantise(exact, &scale, integers.data()));
    Words lossy(exact.size());
    reference::dequantise(&scale, integers.data(), lossy);
    Bytes payload;
    oracle::put(payload, scale, 2);
    for (const std::int8_t q : integers) oracle::put(payload, static_cast<std::uint8_t>(q), 1);
    message.chunks.push_back({7, payload, lossy});
  }
  EXPECT_EQ(encode(Method::kInt8, reference, words, kOptions).bytes, message.bytes());
}

TEST(Format, OfExponentReuseIsThePlaneThenTheExponentsThatChanged) {
  const Words before = weights(150, 4);
  Words now = stepped(before, 5, 1, 1e-3f);
  for (std::size_t i = 64; i < 128; ++i)
    now[i] = static_cast<std::uint16_t>(before[i] + 256);  // all exponents
  for (const Keeps keeps : {Keeps::kExponents, Keeps::kWords}) {
    Reference reference(keeps, 150);
    const Sent key = encode(Method::kRaw, reference, before, kOptions);
    reference.commit(key.update, before);
    oracle::Message message = blank(Method::kExponentReuse, reference);
    message.chunks.push_back(
        {3, oracle::exponent_reuse_payload(part(before, 0), part(now, 0)), part(now, 0)});
    message.chunks.push_back({0, oracle::little_endian(part(now, 1)), part(now, 1)});
    message.chunks.push_back(
        {3, oracle::exponent_reuse_payload(part(before, 2), part(now, 2)), part(now, 2)});
    EXPECT_EQ(encode(Method::kExponentReuse, reference, now, kOptions).bytes, message.bytes());
  }
}

// Chunk 0 is as it was, chunk 1 has three words changed, chunk 2 is beyond help.
TEST(Format, OfResidualAndMomentumSaysSameListsFewChangesAndFallsBackToRaw) {
  const Words before = weights(192, 6);
  Words now = before;
  for (const std::size_t i : {64, 100, 127}) now[i] ^= 1;
  for (std::size_t i = 128; i < 192; ++i) now[i] = static_cast<std::uint16_t>(before[i] * 40503u + i * 7919u);
  for (const Method method : {Method::kResidual, Method::kMomentum}) {
    Reference reference(needs(method), 192);
    const Sent key = encode(Method::kRaw, reference, before, kOptions);
    reference.commit(key.update, before);
    const Bytes sent = encode(method, reference, now, kOptions).bytes;
    oracle::Message message = blank(method, reference);
    const std::size_t tables = static_cast<std::size_t>(sent[44]) | static_cast<std::size_t>(sent[45]) << 8;
    message.tables.assign(sent.begin() + 64, sent.begin() + 64 + static_cast<std::ptrdiff_t>(tables));
    message.chunks.push_back({1, {}, part(now, 0)});
    message.chunks.push_back({2, oracle::sparse_payload(part(before, 1), part(now, 1)), part(now, 1)});
    message.chunks.push_back({0, oracle::little_endian(part(now, 2)), part(now, 2)});
    EXPECT_EQ(sent, message.bytes()) << name_of(method);
  }
}

}  // namespace
}  // namespace moesaic::codec
