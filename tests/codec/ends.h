// ends.h: what the codec's tests share: every instruction set in turn, and parts sent from end to end.
#pragma once

#include <algorithm>

#include "tests/codec/every_target.h"
#include "tests/codec/steps.h"

namespace moesaic::codec {

// The two ends of one part: what is sent is decoded, compared, and committed by both.
struct Ends {
  Method method;
  Reference sender, receiver;
  EncodeOptions options;

  Ends(Method m, std::size_t words, const EncodeOptions& o = {})
      : method(m), sender(needs(m), words), receiver(needs(m), words), options(o) {}

  // The bytes of the message.
  Bytes send(const Words& words) {
    const Sent sent = encode(method, sender, words, options);
    const Got got = decode(receiver, sent.bytes, {options.unit, options.dtype});
    EXPECT_EQ(got.words, sent.received) << name_of(method);
    EXPECT_TRUE(got.update == sent.update) << name_of(method);
    if (lossless(method)) {
      EXPECT_EQ(got.words, words) << name_of(method);
    }
    sender.commit(sent.update, sent.received);
    receiver.commit(got.update, got.words);
    EXPECT_EQ(sender.epoch(), receiver.epoch());
    EXPECT_EQ(sender.hash(), receiver.hash());
    EXPECT_TRUE(std::ranges::equal(sender.memory(), receiver.memory())) << name_of(method);
    return sent.bytes;
  }
};

}  // namespace moesaic::codec
