// Damage of every kind is found: never a crash, never words that pass for the sender's.
#include <algorithm>

#include "moesaic/codec/wire.h"
#include "tests/codec/ends.h"
#include "tests/codec/message_oracle.h"

namespace moesaic::codec {
namespace {

constexpr EncodeOptions kOptions = {.unit = 5, .dtype = DType::kBF16, .chunk_words = 64, .key = false};
constexpr Expected kExpected = {.unit = 5, .dtype = DType::kBF16};
constexpr std::size_t kWords = 150;

enum class Outcome { kSound, kDiffers, kCorrupt };

// Decodes and throws away. Any other error than the two named ones escapes and fails the test.
Outcome outcome(const Reference& reference, const Bytes& message, Words* words = nullptr) {
  try {
    Got got = decode(reference, message, kExpected);
    if (words) *words = std::move(got.words);
    return Outcome::kSound;
  } catch (const ReferenceDiffers&) {
    return Outcome::kDiffers;
  } catch (const CorruptData&) {
    return Outcome::kCorrupt;
  }
}

void flip(Bytes& bytes, std::size_t bit) { bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8); }

// A part after two steps of training (so that differences are there), and the message of the third, whose
// chunks are of every kind that the method has for trained weights.
struct Training {
  Ends ends;
  Words words;
  Sent sent;

  explicit Training(Method method, bool key = false) : ends(method, kWords, kOptions) {
    ends.send(words = weights(kWords, 1));
    ends.send(words = stepped(words, 2));
    const Words before = words;
    words = stepped(words, 3);
    for (std::size_t i = 64; i < 128; ++i) words[i] = before[i];  // chunk 1: same, but for
    words[70] ^= 3;                                               // one word
    EncodeOptions options = kOptions;
    options.key = key;
    sent = encode(method, ends.sender, words, options);
  }
};

class Damage : public testing::TestWithParam<Method> {};
INSTANTIATE_TEST_SUITE_P(Methods, Damage, testing::ValuesIn(kMethods),
                         [](const auto& method) { return std::string(name_of(method.param)); });

TEST_P(Damage, OfAnySingleBitOfAMessageIsCorruptDataAndLeavesTheReferenceAsItWas) {
  for (const bool key : {false, true}) {
    Training training(GetParam(), key);
    const Bytes held(training.ends.receiver.memory().begin(), training.ends.receiver.memory().end());
    for (std::size_t bit = 0; bit < training.sent.bytes.size() * 8; ++bit) {
      Bytes damaged = training.sent.bytes;
      flip(damaged, bit);
      ASSERT_EQ(outcome(training.ends.receiver, damaged), Outcome::kCorrupt) << "bit " << bit;
    }
    EXPECT_TRUE(std::ranges::equal(held, training.ends.receiver.memory()));
    EXPECT_EQ(outcome(training.ends.receiver, training.sent.bytes), Outcome::kSound);
  }
}

// A bit that no chunk looks at (the exponent_reuse of a word whose exponent is sent, the previous difference
// where residual was the better choice) does no harm; any other is told from damage on the way.
TEST_P(Damage, OfAnySingleBitOfAStoredReferenceIsToldFromDamageOnTheWay) {
  Training training(GetParam());
  Reference& receiver = training.ends.receiver;
  std::size_t found = 0;
  for (std::size_t bit = 0; bit < receiver.memory().size() * 8; ++bit) {
    receiver.memory()[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    Words words;
    const Outcome result = outcome(receiver, training.sent.bytes, &words);
    if (result == Outcome::kSound) {
      ASSERT_EQ(words, training.sent.received) << "bit " << bit;
    } else {
      ASSERT_EQ(result, Outcome::kDiffers) << "bit " << bit;
      ++found;
    }
    receiver.memory()[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  // Words and exponents are all looked at, but for those few that were sent anew.
  const std::size_t must = needs(GetParam()) == Keeps::kNothing ? 0 : kWords * 8 * 3 / 4;
  EXPECT_GE(found, must);
}

TEST_P(Damage, ByCuttingOrLengtheningIsCorruptData) {
  const Training training(GetParam());
  const Reference& receiver = training.ends.receiver;
  for (std::size_t size = 0; size < training.sent.bytes.size(); ++size) {
    const auto cut = training.sent.bytes.begin() + static_cast<std::ptrdiff_t>(size);
    ASSERT_EQ(outcome(receiver, Bytes(training.sent.bytes.begin(), cut)), Outcome::kCorrupt) << size;
  }
  Bytes longer = training.sent.bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(outcome(receiver, longer), Outcome::kCorrupt);
}

// Where each chunk of a message begins, and its end.
std::vector<std::size_t> chunk_starts(const Bytes& message) {
  const Header header = read_header(message);
  std::vector<std::size_t> starts{kHeaderBytes + header.tables_bytes};
  for (std::uint64_t i = 0; i < header.chunks(); ++i) {
    const ChunkHeader chunk = read_chunk_header(std::span(message).subspan(starts.back()));
    starts.push_back(starts.back() + kChunkHeaderBytes + chunk.length);
  }
  return starts;
}

TEST_P(Damage, ByChunksThatChangedPlacesOrCameFromAnotherMessageIsCorruptData) {
  Ends ends(GetParam(), 128, kOptions);
  Words words = weights(64, 1);
  words.insert(words.end(), words.begin(), words.begin() + 64);  // the two chunks have the same words
  ends.send(words);
  const Bytes message = encode(GetParam(), ends.sender, words, kOptions).bytes;
  const auto starts = chunk_starts(message);
  const auto at = [&](std::size_t i) { return message.begin() + static_cast<std::ptrdiff_t>(starts[i]); };
  Bytes swapped(message.begin(), at(0));
  swapped.insert(swapped.end(), at(1), at(2));
  swapped.insert(swapped.end(), at(0), at(1));
  EXPECT_EQ(outcome(ends.receiver, swapped), Outcome::kCorrupt);

  EncodeOptions other = kOptions;
  other.unit = 6;
  const Bytes foreign = encode(GetParam(), ends.sender, words, other).bytes;
  EXPECT_EQ(outcome(ends.receiver, foreign), Outcome::kCorrupt);
  Bytes mixed(message.begin(), at(0));
  mixed.insert(mixed.end(), foreign.begin() + static_cast<std::ptrdiff_t>(chunk_starts(foreign)[0]),
               foreign.end());
  EXPECT_EQ(outcome(ends.receiver, mixed), Outcome::kCorrupt);
}

std::string refusal(const Reference& reference, const Bytes& message, const Expected& expected = kExpected) {
  try {
    decode(reference, message, expected);
  } catch (const CorruptData& error) {
    return error.what();
  }
  return "no error";
}

// Checksums that fit do not make a message sound.
TEST(Forgery, IsNamedForWhatIsWrongWithIt) {
  const Words words = weights(64, 1);
  Reference reference(Keeps::kWordsAndDifferences, 64);
  Update held;
  held.hash = 77;
  reference.commit(held, words);
  const auto forged = [&](int method, int key, int mode, const Bytes& payload) {
    oracle::Message message;
    message.method = method;
    message.key = key;
    message.unit = 5;
    message.epoch = 1;
    message.reference_hash = key ? 0 : 77;
    message.chunks.push_back({mode, payload, words});
    return message;
  };
  const auto refused = [&](const oracle::Message& message, const std::string& why) {
    EXPECT_EQ(refusal(reference, message.bytes()), "codec message of unit 5: " + why);
  };
  const Bytes raw = oracle::little_endian(words);
  EXPECT_EQ(refusal(reference, forged(5, 0, 0, raw).bytes()), "no error");
  EXPECT_EQ(refusal(reference, forged(5, 0, 1, {}).bytes()), "no error");
  refused(forged(5, 0, 8, raw), "chunk 0: got mode 8, expected less than 8");
  refused(forged(5, 1, 1, {}), "chunk 0: same in a key of momentum");
  refused(forged(5, 0, 7, Bytes(66)), "chunk 0: int8 in a message of momentum");  // lossy, and not said so
  refused(forged(4, 0, 5, Bytes(66)), "chunk 0: momentum in a message of residual");
  refused(forged(5, 0, 4, Bytes(66)), "chunk 0: residual without its tables");
  refused(forged(1, 1, 6, Bytes(66)), "chunk 0: entropy without tables");
  refused(forged(5, 0, 1, Bytes(4)), "chunk 0: same with 4 bytes of payload");
  refused(forged(5, 0, 0, Bytes(127)), "chunk 0: raw: payload of 127 bytes, expected 128");
  refused(forged(5, 0, 0, Bytes(129)), "chunk 0: got 129 bytes for 64 words, expected at most 128");
  refused(forged(5, 0, 2, Bytes(6)), "chunk 0: sparse: payload of 6 bytes, expected 4");
  Bytes list;
  for (const int value : {9, 9, 0, 0}) oracle::put(list, static_cast<std::uint64_t>(value), 2);
  refused(forged(5, 0, 2, list), "chunk 0: sparse: index 9 after 9: they must ascend");
  list.clear();
  for (const int value : {64, 0}) oracle::put(list, static_cast<std::uint64_t>(value), 2);
  refused(forged(5, 0, 2, list), "chunk 0: sparse: index 64 in a chunk of 64 words");
  refused(forged(3, 0, 3, Bytes(63)), "chunk 0: exponent_reuse: payload of 63 bytes for 64 words");
  refused(forged(3, 0, 3, Bytes(65)), "chunk 0: exponent_reuse: payload of 65 bytes, expected 64");
  refused(forged(2, 0, 7, Bytes(65)), "chunk 0: int8: payload of 65 bytes, expected 66");
  oracle::Message message = forged(0, 1, 0, raw);
  message.tables = Bytes(3);
  refused(message, "it has tables, which raw does not use");
  message = forged(0, 1, 0, raw);
  message.unit = 6;
  refused(message, "it says unit 6");
  message = forged(0, 1, 0, raw);
  message.dtype = 2;
  refused(message, "got dtype fp32, expected bf16");
  message = forged(0, 1, 0, raw);
  message.chunks.push_back({0, {}, {}});
  refused(message, "got 224 bytes, expected 208");
  message.chunks.pop_back();
  message.chunks[0].words.pop_back();
  refused(message, "got 63 words, expected 64");
}

TEST(Forgery, OfAHeaderIsNamedForTheFieldThatHasNoMeaning) {
  const Reference reference(Keeps::kNothing, 0);
  const auto refused = [&](const oracle::Message& message, const std::string& why) {
    EXPECT_EQ(refusal(reference, message.bytes()), "codec message: " + why);
  };
  oracle::Message message;
  message.dtype = 4;
  refused(message, "got dtype 4, expected 1 to 3");
  message = {};
  message.method = 6;
  refused(message, "got method 6, expected less than 6");
  message = {};
  message.method = 1;
  message.dtype = 2;
  refused(message, "got fp32 by method entropy, expected raw");
  message = {};
  message.key = 2;
  refused(message, "got key 2, expected 0 or 1");
  message = {};
  message.reference_hash = 5;
  refused(message, "a key names a reference, 0x0000000000000005");
  for (const std::uint32_t words : {0u, 1u, 3u, 65537u, 65538u, 0xfffffffeu}) {
    message = {};
    message.chunk_words = words;
    refused(message, fmt::format("got chunks of {} words, expected 2, 4, .. 65536", words));
  }
  Bytes bytes = oracle::Message().bytes();
  bytes[0] = std::byte{'m'};
  EXPECT_EQ(refusal(reference, bytes), "codec message: got magic 0x43454f6d, expected 0x43454f4d");
  bytes = oracle::Message().bytes();
  bytes[4] = std::byte{2};
  EXPECT_EQ(refusal(reference, bytes), "codec message: got version 2, expected 1");
}

}  // namespace
}  // namespace moesaic::codec
