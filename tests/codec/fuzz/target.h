// target.h: inputs of the codec's fuzzers. The fuzzers (libfuzzer.cc) and the ordinary tests (fuzz_test.cc)
// run them. There is one fuzzer for the decoder of each method, and one, far slower, for encoders with
// decoders.
//
// decode: a byte of flags, a byte that picks one of a few references, a message. Decoding it must give words
// or CorruptData, whatever it holds. With kRepair, its checksums and what the receiver compares are made to
// fit first: else nothing behind them would ever be reached. round_trip: a byte of flags, a byte that picks
// the method, words of three steps. They must come back as they were sent. Anything else throws or aborts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "moesaic/codec/wire.h"
#include "moesaic/core/crc32c.h"
#include "tests/codec/steps.h"

namespace moesaic::codec::fuzz {

// Of decode.
inline constexpr std::uint8_t kRepair = 1;
inline constexpr std::uint8_t kHeldTables = 2;  // with kRepair: the message re-uses the tables that are held
// Of round_trip.
inline constexpr std::uint8_t kSmallChunks = 1;
inline constexpr std::uint8_t kKey = 2;         // the last step is a key
inline constexpr std::uint8_t kFewChanges = 4;  // each word is xored into the last

using Input = std::vector<std::uint8_t>;

inline constexpr std::array<std::size_t, 8> kSizes = {0, 1, 7, 64, 100, 257, 600, 2048};

inline void must(bool ok) {
  if (!ok) std::abort();
}

// A part after two steps of training. Built once for each method and size.
inline const Reference& trained(Method method, std::size_t words) {
  static std::map<std::pair<Method, std::size_t>, Reference> all;
  const auto found = all.find({method, words});
  if (found != all.end()) return found->second;
  Reference reference(needs(method), words);
  Words now = weights(words, 1);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Sent sent = encode(method, reference, now);
    reference.commit(sent.update, sent.received);
    now = stepped(now, step);
  }
  return all.emplace(std::pair{method, words}, std::move(reference)).first->second;
}

// Makes every checksum of `message` fit, and the fields that a receiver compares with what it knows.
inline void repair(const Reference& reference, bool held_tables, std::span<std::byte> message) {
  if (message.size() < kHeaderBytes) return;
  Header header;
  header.method = static_cast<Method>(message[6]);
  header.key = (message[7] & std::byte{1}) != std::byte{0};
  header.epoch = reference.epoch();
  header.words = reference.size();
  header.reference_hash = header.key ? 0 : reference.hash();
  std::memcpy(&header.chunk_words, message.data() + 40, 4);
  std::memcpy(&header.tables_bytes, message.data() + 44, 4);
  std::memcpy(&header.tables_crc, message.data() + 48, 4);
  const auto body = message.subspan(kHeaderBytes);
  if (held_tables) {
    header.tables_bytes = 0;
    header.tables_crc = crc32c(std::as_bytes(reference.tables()));
  } else if (header.tables_bytes <= body.size()) {
    header.tables_crc = crc32c(body.first(header.tables_bytes));
  }
  write(header, message);
  if (header.chunk_words == 0 || header.tables_bytes > body.size()) return;

  auto rest = body.subspan(header.tables_bytes);
  std::size_t begin = 0;
  for (std::uint32_t number = 0; rest.size() >= kChunkHeaderBytes && begin < reference.size(); ++number) {
    ChunkHeader chunk = read_chunk_header(rest);
    chunk.number = number;
    if (chunk.length > rest.size() - kChunkHeaderBytes) return;
    const auto payload = rest.subspan(kChunkHeaderBytes, chunk.length);
    const std::size_t n = std::min<std::size_t>(header.chunk_words, reference.size() - begin);
    // Where it is plain what the words are, so that the chunks behind this one are reached as well.
    if (chunk.mode == ChunkMode::kRaw) chunk.words_crc = crc32c(payload);
    if (chunk.mode == ChunkMode::kSame && !reference.words().empty()) {
      chunk.words_crc = crc32c(std::as_bytes(reference.words().subspan(begin, n)));
    }
    write(chunk, header.crc, rest.first(kChunkHeaderBytes + chunk.length));
    rest = rest.subspan(kChunkHeaderBytes + chunk.length);
    begin += n;
  }
}

inline void decode(Method method, std::span<const std::uint8_t> data) {
  if (data.size() < 2) return;
  const std::uint8_t flags = data[0];
  const std::size_t words = kSizes[data[1] % kSizes.size()];
  data = data.subspan(2);
  const Reference& reference = trained(method, words);
  // Of its own, so that a sanitizer sees a byte past its end.
  const auto bytes = std::make_unique<std::byte[]>(data.size());
  const std::span message(bytes.get(), data.size());
  std::ranges::copy(std::as_bytes(data), message.begin());
  if (flags & kRepair) repair(reference, flags & kHeldTables, message);
  const auto decoded = std::make_unique<std::uint16_t[]>(words);
  try {
    Decoder decoder(reference, {}, {decoded.get(), words});
    decoder.advance(message.first(message.size() / 2));
    decoder.finish(message);
  } catch (const CorruptData&) {
    // As it should be.
  }
}

inline void round_trip(std::span<const std::uint8_t> data) {
  if (data.size() < 2) return;
  const std::uint8_t flags = data[0];
  const Method method = kMethods[data[1] % std::size(kMethods)];
  data = data.subspan(2);
  const std::size_t n = data.size() / 6;
  Reference sender(needs(method), n), receiver(needs(method), n);
  Words now(n);
  for (std::size_t step = 0; step < 3; ++step) {
    Words next(n);
    if (n > 0) std::memcpy(next.data(), data.data() + step * n * 2, n * 2);
    for (std::size_t i = 0; i < n; ++i) now[i] = flags & kFewChanges ? now[i] ^ next[i] : next[i];
    EncodeOptions options;
    if (flags & kSmallChunks) options.chunk_words = 64;
    options.key = (flags & kKey) && step == 2;
    // Measuring tables is what takes the time: only the last step's are of interest, and step 1 as it is
    // gives it a reference and differences.
    const Sent sent = encode(step < 2 ? Method::kRaw : method, sender, now, options);
    const Got got = codec::decode(receiver, sent.bytes);
    must(got.words == sent.received && got.update == sent.update);
    must(!lossless(method) || got.words == now);
    sender.commit(sent.update, sent.received);
    receiver.commit(got.update, got.words);
    must(std::ranges::equal(sender.memory(), receiver.memory()));
  }
}

// Inputs to start from: sound messages of each kind...
inline std::vector<Input> decode_seeds(Method method) {
  std::vector<Input> all;
  for (std::size_t size = 0; size < kSizes.size() - 1; ++size) {
    const Reference& reference = trained(method, kSizes[size]);
    const Words held = stepped(stepped(weights(kSizes[size], 1), 0), 1);
    for (const float share : {0.0f, 0.02f, 1.0f}) {
      for (const bool key : {false, true}) {
        EncodeOptions options;
        options.key = key;
        if (size % 2 == 0) options.chunk_words = 64;
        const Sent sent = encode(method, reference, stepped(held, 7, share), options);
        for (const std::uint8_t flags : {std::uint8_t{0}, kRepair}) {
          Input input = {flags, static_cast<std::uint8_t>(size)};
          for (const std::byte byte : sent.bytes) input.push_back(static_cast<std::uint8_t>(byte));
          all.push_back(std::move(input));
        }
      }
    }
  }
  return all;
}

// ... and steps of training.
inline std::vector<Input> round_trip_seeds() {
  std::vector<Input> all;
  for (std::uint8_t method = 0; method < std::size(kMethods); ++method) {
    for (const std::size_t size : {7, 100, 257}) {
      const Words first = weights(size, 1);
      for (const std::uint8_t flags : {0, kSmallChunks | kKey, kSmallChunks | kFewChanges}) {
        Input input = {flags, method};
        for (const Words& words : {first, stepped(first, 8), stepped(first, 9)}) {
          const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data());
          input.insert(input.end(), bytes, bytes + words.size() * 2);
        }
        all.push_back(std::move(input));
      }
    }
  }
  return all;
}

}  // namespace moesaic::codec::fuzz
