// steps.h: weights that train a step, and whole messages of them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "moesaic/codec/message.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/rng.h"

namespace moesaic::codec {

using Words = std::vector<std::uint16_t>;
using Bytes = std::vector<std::byte>;

inline Words all_patterns() {
  Words words(65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) words[bits] = static_cast<std::uint16_t>(bits);
  return words;
}

// Any pattern, each as likely.
inline Words noise(std::size_t n, std::uint64_t seed) {
  const std::uint64_t key = random_key(seed, "noise");
  Words words(n);
  for (std::size_t i = 0; i < n; ++i) words[i] = static_cast<std::uint16_t>(random_bits(key, i));
  return words;
}

// Normal, of deviation 0.02.
inline Words weights(std::size_t n, std::uint64_t seed) {
  const std::uint64_t key = random_key(seed, "weights");
  Words words(n);
  for (std::size_t i = 0; i < n; ++i) words[i] = to_bf16(0.02f * random_normal(key, i)).bits;
  return words;
}

// One step of an optimizer: a share of the weights moves by a normal of deviation `size`.
inline Words stepped(Words words, std::uint64_t seed, float share = 1, float size = 1e-4f) {
  const std::uint64_t key = random_key(seed, "step");
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (random_uniform(key, i) >= share) continue;
    words[i] = to_bf16(to_float(BF16{words[i]}) + size * random_normal(key, i, 1)).bits;
  }
  return words;
}

struct Sent {
  Bytes bytes;
  Update update;
  Words received;  // what int8's sender learns that its receivers have; else the words sent
};

// A whole message; the reference stays as it is.
inline Sent encode(Method method, const Reference& reference, const Words& words,
                   const EncodeOptions& options = {}) {
  Bytes room(message_bound(words.size(), options));
  Words received(lossless(method) ? 0 : words.size());
  Encoder encoder(method, reference, words, options, room, received);
  const auto message = encoder.all();
  return {Bytes(message.begin(), message.end()), encoder.update(), lossless(method) ? words : received};
}

struct Got {
  Words words;
  Update update;
};

inline Got decode(const Reference& reference, std::span<const std::byte> message,
                  const Expected& expected = {}) {
  Words words(reference.size(), 0xabcd);
  Decoder decoder(reference, expected, words);
  Update update = decoder.finish(message);
  return {std::move(words), std::move(update)};
}

inline bool operator==(const Update& a, const Update& b) {
  return a.epoch == b.epoch && a.key == b.key && a.hash == b.hash && a.tables == b.tables;
}

}  // namespace moesaic::codec
