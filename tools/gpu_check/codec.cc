#include <algorithm>

#include "moesaic/codec/cuda.h"
#include "moesaic/codec/device_plan.h"
#include "moesaic/codec/reference.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/rng.h"
#include "tools/gpu_check/device.h"

namespace moesaic::gpu_check {
namespace {

using namespace codec;
using Words = std::vector<std::uint16_t>;
using Bytes = std::vector<std::uint8_t>;

Words weights(std::size_t n) {
  const std::uint64_t key = random_key(1, "weights");
  Words words(n);
  for (std::size_t i = 0; i < n; ++i) words[i] = to_bf16(0.02f * random_normal(key, i)).bits;
  return words;
}

// Steps go the same way, so that the step before predicts the next one.
Words stepped(Words words, float share) {
  const std::uint64_t key = random_key(2, "step");
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (random_uniform(key, i) >= share) continue;
    words[i] = to_bf16(to_float(BF16{words[i]}) + 1e-4f * random_normal(key, i, 1)).bits;
  }
  return words;
}

// One message of the CPU's encoder, and all that a device needs to write and to read it.
struct Message {
  Bytes bytes;
  Update update;
  DevicePlan plan;
  double bits_per_word = 0;

  Message(Method method, const Reference& reference, const Words& words, std::size_t chunk_words) {
    EncodeOptions options;
    options.chunk_words = chunk_words;
    std::vector<std::byte> room(message_bound(words.size(), options));
    Encoder encoder(method, reference, words, options, room);
    const auto message = encoder.all();
    plan = device_plan(reference, message);
    update = encoder.update();
    bytes.resize(message.size());
    std::ranges::transform(message, bytes.begin(),
                           [](std::byte byte) { return static_cast<std::uint8_t>(byte); });
    if (!plan.tables.has_difference) return;
    if (plan.header.tables_bytes == 0) {
      const auto held = DifferenceTables::read(reference.tables());
      const bool momentum = held.predictor() == Predictor::kMomentum;
      bits_per_word = held.price(reference.words(),
                                 momentum ? reference.differences() : std::span<const std::uint8_t>(), words)
                          .bits_per_word;
    } else if (method == Method::kMomentum) {
      bits_per_word =
          DifferenceTables::measure_best(reference.words(), reference.differences(), words).bits_per_word();
    } else {
      bits_per_word =
          DifferenceTables::measure(Predictor::kReference, reference.words(), {}, words).bits_per_word();
    }
  }
};

// A message's memory on the device.
struct OnGpu {
  OnDevice<DeviceTables> tables;
  OnDevice<std::uint16_t> held, current, decoded;
  OnDevice<std::uint8_t> differences, message, received;
  OnDevice<std::uint64_t> length;
  OnDevice<DeviceChunk> chunks;
  DevicePart part;

  OnGpu(const Message& from, const Reference& reference, const Words& words)
      : tables(std::span(&from.plan.tables, 1)),
        held(reference.words()),
        current(words),
        decoded(words.size()),
        differences(reference.differences()),
        message(from.bytes.size() + 64),
        received(from.bytes),
        length(1),
        chunks(static_cast<std::size_t>(from.plan.chunks())),
        part(from.plan.part(tables.data(), held.data(), differences.data())) {
    check(cudaMemcpy(message.data(), from.bytes.data(), from.plan.prefix_bytes, cudaMemcpyHostToDevice),
          "copy");
  }
  void encode(const Message& from) {
    cuda::encode_chunks(part, current.data(), from.bits_per_word, message.data(), length.data(),
                        chunks.data());
  }
  void decode(const Message& from) {
    cuda::decode_chunks(part, received.data(), from.bytes.size(), from.plan.modes, decoded.data(),
                        chunks.data());
  }
  std::size_t faults() const {
    const auto all = chunks.host();
    return static_cast<std::size_t>(std::ranges::count_if(
        all, [](const DeviceChunk& chunk) { return chunk.fault != ChunkFault::kNone; }));
  }
};

void check_messages(Report& report, Method method, std::size_t n, std::size_t chunk_words) {
  Reference reference(needs(method), n);
  Words words = weights(n);
  int step = 0;
  for (const float share : {0.0f, 1.0f, 1.0f, 1.0f, 0.002f, 0.05f, 0.0f}) {
    words = stepped(words, share);
    const auto what =
        fmt::format("{} {} words in chunks of {}, step {}", name_of(method), n, chunk_words, step++);
    const Message message(method, reference, words, chunk_words);
    OnGpu gpu(message, reference, words);
    gpu.encode(message);
    Bytes coded = gpu.message.host();
    const bool whole = gpu.length.host()[0] == message.bytes.size();
    coded.resize(message.bytes.size());
    report.expect(whole && coded == message.bytes, "encode " + what);
    gpu.decode(message);
    report.expect(gpu.faults() == 0 && gpu.decoded.host() == words, "decode " + what);
    if (needs(method) == Keeps::kWordsAndDifferences) {
      Bytes previous(previous_bytes(n));
      reference::update_previous(reference.words(), words, previous);
      cuda::update_previous(gpu.held.data(), gpu.current.data(), n, gpu.differences.data());
      report.expect(gpu.differences.host() == previous, "update_previous " + what);
    }
    reference.commit(message.update, words);
  }
}

void check_damage(Report& report) {
  constexpr std::size_t kWords = 5000;
  Reference reference(Keeps::kWordsAndDifferences, kWords);
  Words words = weights(kWords);
  for (int step = 0; step < 3; ++step) {
    reference.commit(Message(Method::kMomentum, reference, words, 1000).update, words);
    words = stepped(words, 1);
  }
  Message message(Method::kMomentum, reference, words, 1000);
  const Bytes sound = message.bytes;
  for (std::size_t at = message.plan.prefix_bytes; at < sound.size(); at += 37) {
    message.bytes = sound;
    message.bytes[at] ^= static_cast<std::uint8_t>(1 << at % 8);
    OnGpu gpu(message, reference, words);
    gpu.decode(message);
    report.expect(gpu.faults() > 0, fmt::format("a flipped bit in byte {} is a fault", at));
  }
}

void time_codec(Report& report) {
  constexpr std::size_t kWords = std::size_t{3} << 22;
  for (const std::size_t chunk_words : {std::size_t{4096}, std::size_t{16384}, std::size_t{65536}}) {
    Reference reference(Keeps::kWordsAndDifferences, kWords);
    Words words = weights(kWords);
    for (int step = 0; step < 2; ++step) {
      reference.commit(Message(Method::kMomentum, reference, words, chunk_words).update, words);
      words = stepped(words, 1);
    }
    const Message message(Method::kMomentum, reference, words, chunk_words);
    OnGpu gpu(message, reference, words);
    // Words and what both ends hold of them are read or written, and the message.
    const double bytes = kWords * 4.5 + static_cast<double>(message.bytes.size());
    report.speed(fmt::format("encode 12582912 words, chunks of {}", chunk_words), bytes,
                 [&] { gpu.encode(message); });
    report.speed(fmt::format("decode 12582912 words, chunks of {}", chunk_words), bytes,
                 [&] { gpu.decode(message); });
    report.expect(gpu.faults() == 0 && gpu.decoded.host() == words,
                  fmt::format("decode, chunks of {}", chunk_words));
  }
}

}  // namespace

void check_codec(Report& report) {
  for (const Method method : {Method::kRaw, Method::kEntropy, Method::kResidual, Method::kMomentum}) {
    for (const std::size_t n : {0, 1, 2, 33, 1001, 100003}) {
      for (const std::size_t chunk_words : {64, 1000, 65536}) {
        if (n <= 2000 * chunk_words / 64) check_messages(report, method, n, chunk_words);
      }
    }
  }
  check_damage(report);
  time_codec(report);
}

}  // namespace moesaic::gpu_check
