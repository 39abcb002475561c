// message.h: from words to a message and back, a chunk at a time.
//
// Local: the caller moves the bytes. A message is a header, the coder's tables where they are new, and
// independent chunks (wire.h has every field). Sender and receiver, for one part of one unit:
//
//   Buffer out(message_bound(words, options));            Decoder decoder(reference, expected, decoded);
//   Encoder encoder(method, reference, current, options,  while (more bytes arrive)
//                   out);                                   decoder.advance(all bytes so far);
//   while (auto slice = encoder.next(); !slice.empty())   decoder.finish(all bytes);
//     send(slice);
//   --- all ranks exchange their verdicts; if all are good, each does (else: a key, see below) ---
//   reference.commit(encoder.update(), current);          reference.commit(decoder.update(), decoded);
//
// Guarantees. Lossless methods decode to the sender's words, bit for bit, NaN payloads included. A decoder
// trusts nothing: a message that was cut, damaged, mixed up or made for another reference ends in an error,
// never in a crash, and never in words that pass for the sender's. Nothing here changes a Reference.
//
// Errors. ReferenceDiffers: the bytes are sound, but this end does not hold what the sender differed against;
// CorruptData (its base): the bytes are not. Either way a key message helps: encode again with `key`; it
// needs no reference, and after its commit all ends hold the same again. InvalidArgument: a caller's mistake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "moesaic/codec/method.h"
#include "moesaic/codec/reference_state.h"
#include "moesaic/core/dtype.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {

// This end holds nothing, another epoch or other words than the sender differed against, or its copy is
// damaged: a chunk's payload is as it was sent, yet does not give the words it should.
class ReferenceDiffers : public CorruptData {
 public:
  using CorruptData::CorruptData;
};

inline constexpr std::size_t kMaxChunkWords = 65536;

struct EncodeOptions {
  std::uint64_t unit = 0;  // the caller's number for this part of this unit; a decoder insists on it
  // Of the elements; anything but bf16 travels as `raw` only (fp32: two words an element).
  DType dtype = DType::kBF16;
  std::size_t chunk_words = kMaxChunkWords;  // even, 2 to kMaxChunkWords; the last chunk may be shorter
  bool key = false;  // code without the reference (first message, resync); implied when it is not valid()
};

// No message of so many words is longer; what an Encoder wants as room. The room is touched only as far as
// the message goes.
std::size_t message_bound(std::size_t words, const EncodeOptions& options);

class Encoder {
 public:
  // `current` are the words of the part, reference.size() of them; `out` is at least message_bound() bytes.
  // Both, and the reference, must stay, unchanged, until the last next(). Cost: reads a sample of the words
  // for the tables. `received`, for int8 only, and required there: current.size() words that get what the
  // receivers will decode, chunk by chunk, so that every rank computes with the same weights; it may be the
  // memory of `current` itself. InvalidArgument: sizes, a method that needs more than the reference keeps,
  // a dtype that the method cannot carry.
  Encoder(Method method, const Reference& reference, std::span<const std::uint16_t> current,
          const EncodeOptions& options, std::span<std::byte> out, std::span<std::uint16_t> received = {});
  ~Encoder();
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;

  // Codes one more chunk and returns the bytes that became final (with the first chunk, the header and the
  // tables before it); they follow the last ones in `out` and stay there. Empty when the message is whole.
  // A part of 0 words is a header alone.
  std::span<const std::byte> next();

  // The rest of the message; returns all of it.
  std::span<const std::byte> all();

  // Once next() has returned empty. InvalidArgument before.
  const Update& update() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a receiver knows without the message.
struct Expected {
  std::uint64_t unit = 0;
  DType dtype = DType::kBF16;
};

class Decoder {
 public:
  // `words`, reference.size() of them, get the result; they must not be the reference's own memory. They
  // hold rubbish where a chunk failed: use them only after finish().
  Decoder(const Reference& reference, const Expected& expected, std::span<std::uint16_t> words);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // `message`: the message as far as it has arrived, from its first byte on; it may have moved since the last
  // call. Decodes and verifies every chunk that is whole; returns how many words are final. After an error
  // the Decoder is of no more use. Bytes past the end of the message: CorruptData.
  std::size_t advance(std::span<const std::byte> message);

  // advance(), and CorruptData unless the message is whole.
  const Update& finish(std::span<const std::byte> message);

  // After finish(). InvalidArgument before.
  const Update& update() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moesaic::codec
