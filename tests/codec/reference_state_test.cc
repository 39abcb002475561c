// What both ends hold, and what happens when they do not hold the same.
#include "moesaic/codec/reference_state.h"

#include "tests/codec/ends.h"

namespace moesaic::codec {
namespace {

template <typename Failure, typename Body>
std::string message_of(Body body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure.what();
  } catch (const std::exception& other) {
    return std::string("another error: ") + other.what();
  }
  return "no error";
}

constexpr Method kHistoryMethods[] = {Method::kExponentReuse, Method::kResidual, Method::kMomentum};

class OutOfStep : public testing::TestWithParam<Method> {};
INSTANTIATE_TEST_SUITE_P(Methods, OutOfStep, testing::ValuesIn(kHistoryMethods),
                         [](const auto& method) { return std::string(name_of(method.param)); });

TEST(Methods, HaveTheNamesOfTheConfiguration) {
  for (const Method method : kMethods) EXPECT_EQ(method_from_name(name_of(method)), method);
  EXPECT_EQ(name_of(Method::kExponentReuse), "exponent_reuse");
  const std::string message = message_of<InvalidArgument>([] { method_from_name("zip"); });
  EXPECT_EQ(message,
            "codec method 'zip' is unknown; expected one of raw, entropy, int8, exponent_reuse, residual, "
            "momentum");
}

TEST(Methods, OnlyInt8IsLossy) {
  for (const Method method : kMethods) EXPECT_EQ(lossless(method), method != Method::kInt8);
}

TEST(Reference, TakesTheMemoryItSays) {
  for (const auto& [keeps, bytes] :
       {std::pair{Keeps::kNothing, 0u}, std::pair{Keeps::kExponents, 1000u}, std::pair{Keeps::kWords, 2000u},
        std::pair{Keeps::kWordsAndDifferences, 2500u}}) {
    EXPECT_EQ(Reference(keeps, 1000).bytes(), bytes);
    EXPECT_EQ(bytes_per_word(keeps) * 1000, bytes);
  }
}

TEST(Reference, ForgetsDifferencesAtAKeyAndLearnsThemFromAnyOtherMessage) {
  Ends ends(Method::kMomentum, 100);
  const Words first = weights(100, 1);
  Words second = first;
  second[3] = static_cast<std::uint16_t>(second[3] + 2);
  ends.send(first);
  for (const std::uint8_t pair : ends.sender.differences()) ASSERT_EQ(pair, 0);
  ends.method = Method::kRaw;  // a gate may choose another method for one step
  ends.send(second);
  EXPECT_NE(ends.sender.differences()[1], 0);
  ends.options.key = true;
  ends.send(first);
  for (const std::uint8_t pair : ends.sender.differences()) ASSERT_EQ(pair, 0);
}

TEST(Reference, HoldsTheExponentsOfWhatWasSent) {
  Ends ends(Method::kExponentReuse, 1009);
  ends.send(weights(1009, 1));
  const Words now = weights(1009, 2);
  ends.send(now);
  for (std::size_t i = 0; i < now.size(); ++i) ASSERT_EQ(ends.receiver.exponents()[i], now[i] / 128 % 256);
}

TEST(Reference, CopiesItsWordsUnlessABitOfThemFlipped) {
  const std::size_t n = 2 * kMaxChunkWords + 77;
  for (const Method method : {Method::kResidual, Method::kMomentum}) {
    Ends ends(method, n);
    Words copy(n);
    EXPECT_EQ(message_of<CorruptData>([&] { ends.receiver.copy_words(copy); }), "nothing is held");
    ends.send(weights(n, 1));
    const Words now = stepped(weights(n, 1), 2);
    ends.send(now);
    for (Reference* end : {&ends.sender, &ends.receiver}) {
      end->copy_words(copy);
      EXPECT_EQ(copy, now);
      for (const std::size_t word : {std::size_t{0}, kMaxChunkWords, n - 1}) {
        std::byte& byte = end->memory()[word * 2];
        byte ^= std::byte{0x80};
        EXPECT_NE(message_of<CorruptData>([&] {
                    end->copy_words(copy);
                  }).find(fmt::format("chunk {} of the words that are held", word / kMaxChunkWords)),
                  std::string::npos);
        byte ^= std::byte{0x80};
      }
      end->copy_words(copy);
      end->reset();
      EXPECT_EQ(message_of<CorruptData>([&] { end->copy_words(copy); }), "nothing is held");
    }
  }
  EXPECT_NE(message_of<InvalidArgument>([] {
              Words none(10);
              Reference(Keeps::kExponents, 10).copy_words(none);
            }).find("keeps 1 bytes of each of 10"),
            std::string::npos);
}

TEST(Reference, RefusesACommitThatDoesNotFit) {
  Ends ends(Method::kResidual, 10);
  const Words words = weights(10, 1);
  Update against_nothing;
  against_nothing.key = false;
  EXPECT_EQ(message_of<InvalidArgument>([&] { ends.sender.commit(against_nothing, words); }),
            "codec reference: commit of a message that is no key, but nothing is held");
  ends.send(words);
  const Sent sent = encode(Method::kResidual, ends.sender, words);
  EXPECT_EQ(message_of<InvalidArgument>([&] { ends.sender.commit(sent.update, weights(9, 1)); }),
            "codec reference: commit of 9 words, expected 10");
  ends.sender.commit(sent.update, words);
  EXPECT_EQ(message_of<InvalidArgument>([&] { ends.sender.commit(sent.update, words); }),
            "codec reference: commit of a message against epoch 1, but epoch 2 is held");
}

TEST(Reference, MeansAKeyUntilItHoldsSomethingAndAfterReset) {
  Ends ends(Method::kMomentum, 100);
  const Words words = weights(100, 1);
  EXPECT_TRUE(encode(Method::kMomentum, ends.sender, words).update.key);
  ends.send(words);
  EXPECT_FALSE(encode(Method::kMomentum, ends.sender, words).update.key);
  ends.sender.reset();
  EXPECT_FALSE(ends.sender.valid());
  EXPECT_TRUE(encode(Method::kMomentum, ends.sender, words).update.key);
  ends.send(words);  // the receiver, which never reset, follows
}

// What the sender had in between, and never sent, is nobody's reference.
TEST_P(OutOfStep, TheSenderDiffersAgainstWhatItLastSent) {
  Ends ends(GetParam(), 1009);
  Words words = weights(1009, 1);
  ends.send(words);
  words = stepped(words, 2);
  const Sent lost = encode(GetParam(), ends.sender, words);  // coded, but not committed by anyone
  words = stepped(words, 3);
  ends.send(words);
  EXPECT_EQ(ends.sender.epoch(), 2u);
  EXPECT_NE(ends.sender.hash(), lost.update.hash);
}

TEST_P(OutOfStep, AReceiverThatHoldsNothingSaysSo) {
  Ends ends(GetParam(), 100);
  const Words words = weights(100, 1);
  ends.send(words);
  const Sent sent = encode(GetParam(), ends.sender, words);
  EXPECT_EQ(message_of<ReferenceDiffers>([&] { decode(Reference(needs(GetParam()), 100), sent.bytes); }),
            "codec message of unit 0: it differs from epoch 1, but nothing is held");
}

TEST_P(OutOfStep, AReceiverThatMissedAMessageSaysSo) {
  Ends ends(GetParam(), 100);
  Words words = weights(100, 1);
  ends.send(words);
  const Sent missed = encode(GetParam(), ends.sender, words = stepped(words, 2));
  ends.sender.commit(missed.update, words);
  const Sent sent = encode(GetParam(), ends.sender, words = stepped(words, 3));
  EXPECT_EQ(message_of<ReferenceDiffers>([&] { decode(ends.receiver, sent.bytes); }),
            "codec message of unit 0: it differs from epoch 2, but epoch 1 is held");
}

TEST_P(OutOfStep, AReceiverWithOtherWordsOfTheSameEpochSaysSo) {
  Ends ends(GetParam(), 100), others(GetParam(), 100);
  const Words words = weights(100, 1);
  ends.send(words);
  others.send(weights(100, 2));
  const Sent sent = encode(GetParam(), ends.sender, words);
  EXPECT_NE(message_of<ReferenceDiffers>([&] { decode(others.receiver, sent.bytes); }).find("words of hash"),
            std::string::npos);
}

TEST_P(OutOfStep, AKeyBringsEveryoneTogetherAgain) {
  Ends ends(GetParam(), 1009);
  Words words = weights(1009, 1);
  for (int i = 0; i < 3; ++i) ends.send(words = stepped(words, 2));
  Ends late(GetParam(), 1009);
  late.send(weights(1009, 5));
  ends.receiver = std::move(late.receiver);
  const Sent refused = encode(GetParam(), ends.sender, words = stepped(words, 3));
  EXPECT_THROW(decode(ends.receiver, refused.bytes), ReferenceDiffers);
  ends.options.key = true;  // the same words again
  ends.send(words);
  EXPECT_EQ(ends.receiver.epoch(), 4u);
  ends.options.key = false;
  ends.send(words = stepped(words, 4));
}

TEST(Encoder, RefusesWhatItCannotSendAndSaysWhy) {
  const Reference reference(Keeps::kExponents, 10);
  const Words words = weights(10, 1);
  const auto refusal = [&](Method method, const Words& current, const EncodeOptions& options) {
    return message_of<InvalidArgument>([&] { encode(method, reference, current, options); });
  };
  EXPECT_EQ(refusal(Method::kRaw, weights(11, 1), {}), "codec: got 11 words, expected the reference's 10");
  EXPECT_EQ(refusal(Method::kMomentum, words, {}),
            "codec: momentum needs 2.5 bytes a word of the reference, which keeps 1");
  EXPECT_EQ(refusal(Method::kEntropy, words, {.dtype = DType::kF32}),
            "codec: got dtype fp32 for entropy, expected bf16 (others travel as raw)");
  for (const std::size_t chunk : {std::size_t{0}, std::size_t{7}, kMaxChunkWords + 2}) {
    EXPECT_NE(refusal(Method::kRaw, words, {.chunk_words = chunk}).find("codec: got chunks of"),
              std::string::npos);
  }
  Bytes room(10);
  EXPECT_NE(message_of<InvalidArgument>([&] {
              Encoder(Method::kRaw, reference, words, {}, room);
            }).find("codec: got room for 10 bytes, expected"),
            std::string::npos);
  room.resize(message_bound(10, {}));
  EXPECT_EQ(message_of<InvalidArgument>([&] { Encoder(Method::kInt8, reference, words, {}, room); }),
            "codec: int8 got room for 0 received words, expected 10");
}

}  // namespace
}  // namespace moesaic::codec
