// What the GPU twins do, task by task, played on the CPU, in both orders of lanes and tasks.
#include <map>

#include "moesaic/codec/device_plan.h"
#include "moesaic/codec/message_decode_device.h"
#include "moesaic/codec/message_encode_device.h"
#include "moesaic/codec/reference.h"
#include "tests/codec/ends.h"
#include "tests/core/host_warp.h"

namespace moesaic::codec {
namespace {

constexpr bool kOrders[] = {false, true};

const std::uint8_t* as_u8(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}
std::uint8_t* as_u8(Bytes& bytes) { return reinterpret_cast<std::uint8_t*>(bytes.data()); }

DevicePart part_of(const DevicePlan& plan, const Reference& reference) {
  return plan.part(&plan.tables, reference.words().data(),
                   reference.differences().empty() ? nullptr : reference.differences().data());
}

// What the CPU's encoder expects of its tables.
double expected_bits(const DevicePlan& plan, const Reference& reference, const Words& words) {
  const Header& header = plan.header;
  if (header.key || !plan.tables.has_difference) return 0;
  const bool momentum = header.method == Method::kMomentum;
  if (header.tables_bytes == 0) {
    const auto held = DifferenceTables::read(reference.tables());
    const bool differences = held.predictor() == Predictor::kMomentum;
    return held
        .price(reference.words(), differences ? reference.differences() : std::span<const std::uint8_t>(),
               words)
        .bits_per_word;
  }
  return (momentum ? DifferenceTables::measure_best(reference.words(), reference.differences(), words)
                   : DifferenceTables::measure(Predictor::kReference, reference.words(), {}, words))
      .bits_per_word();
}

Bytes encoded_by_warps(const DevicePlan& plan, const Reference& reference, const Words& words,
                       const Bytes& message, bool backwards, std::vector<DeviceChunk>& chunks) {
  const std::uint64_t room_bytes = encoded_bound(plan.header.chunk_words);
  std::vector<std::uint8_t> room(room_bytes * plan.chunks(), 0xee);
  Bytes out(message.size() + 1000, std::byte{0xdd});
  std::copy_n(message.begin(), plan.prefix_bytes, out.begin());
  chunks.assign(plan.chunks(), {});
  std::uint64_t length = 0;
  const EncodeChunk encode = {part_of(plan, reference),
                              words.data(),
                              expected_bits(plan, reference, words),
                              room.data(),
                              room_bytes,
                              chunks.data()};
  run_warps(backwards, plan.chunks(), encode);
  run_warps(backwards, 1, PlaceChunks{encode.part, plan.chunks(), chunks.data(), &length});
  EXPECT_EQ(length, message.size());
  if (length != message.size()) return {};
  run_warps(backwards, plan.chunks(), WriteChunk{encode, as_u8(out)});
  out.resize(length);
  return out;
}

std::vector<DeviceChunk> decoded_by_warps(const DevicePlan& plan, const Reference& reference,
                                          const Bytes& message, bool backwards, Words& words) {
  std::vector<DeviceChunk> chunks(plan.chunks());
  const DevicePart part = part_of(plan, reference);
  run_warps(backwards, 1,
            FindChunks{part, as_u8(std::span(message)), message.size(), plan.chunks(), chunks.data()});
  run_warps(backwards, plan.chunks(),
            DecodeChunk{part, as_u8(std::span(message)), plan.modes, words.data(), chunks.data()});
  return chunks;
}

// Both ways of one message of the CPU's; returns its chunks.
std::vector<DeviceChunk> expect_same(const Reference& reference, const Words& words, const Bytes& message) {
  const DevicePlan plan = device_plan(reference, message);
  std::vector<DeviceChunk> chunks;
  for (const bool backwards : kOrders) {
    EXPECT_EQ(encoded_by_warps(plan, reference, words, message, backwards, chunks), message);
    Words decoded(words.size(), 0x5a5a);
    for (const DeviceChunk& chunk : decoded_by_warps(plan, reference, message, backwards, decoded)) {
      EXPECT_EQ(chunk.fault, ChunkFault::kNone);
    }
    EXPECT_EQ(decoded, words);
  }
  return chunks;
}

// Messages of a training run, with the chunks of each mode counted.
std::map<ChunkMode, int> send_steps(Method method, std::size_t n, std::size_t chunk_words) {
  std::map<ChunkMode, int> seen;
  Reference reference(needs(method), n);
  Words words = weights(n, 1);
  const float shares[] = {1, 1, 1, 0.002f, 0.05f, 0, 1};
  for (std::size_t step = 0; step < std::size(shares); ++step) {
    // The first steps go the same way, which the momentum can tell.
    if (step > 0) words = stepped(words, step < 3 ? 7 : step, shares[step]);
    if (step == 6) words = noise(n, 9);
    EncodeOptions options;
    options.chunk_words = chunk_words;
    const Sent sent = encode(method, reference, words, options);
    for (const DeviceChunk& chunk : expect_same(reference, words, sent.bytes)) ++seen[chunk.mode];
    reference.commit(sent.update, words);
  }
  return seen;
}

TEST(DeviceMessage, IsTheCpusBitForBitAtAnySize) {
  for (const Method method : {Method::kRaw, Method::kEntropy, Method::kResidual, Method::kMomentum}) {
    for (const std::size_t n : {0, 1, 2, 31, 32, 33, 1001}) {
      for (const std::size_t chunk_words : {2, 64, 1000, 65536}) {
        if (n > 16 * chunk_words) continue;
        SCOPED_TRACE(fmt::format("{}, {} words in chunks of {}", name_of(method), n, chunk_words));
        send_steps(method, n, chunk_words);
      }
    }
  }
}

TEST(DeviceMessage, HasEveryModeThatItsMethodHas) {
  const auto momentum = send_steps(Method::kMomentum, 20000, 6000),
             residual = send_steps(Method::kResidual, 20000, 6000);
  for (const ChunkMode mode : {ChunkMode::kEntropy, ChunkMode::kSame, ChunkMode::kSparse, ChunkMode::kRaw}) {
    EXPECT_TRUE(momentum.contains(mode)) << name_of(mode);
    EXPECT_TRUE(residual.contains(mode)) << name_of(mode);
  }
  EXPECT_TRUE(momentum.contains(ChunkMode::kMomentum));
  EXPECT_TRUE(residual.contains(ChunkMode::kResidual));
}

TEST(DeviceMessage, CodesEveryPatternOfBits) {
  for (const Method method : {Method::kEntropy, Method::kMomentum}) {
    Reference reference(needs(method), 65536);
    for (const Words& words : {all_patterns(), noise(65536, 1), all_patterns()}) {
      const Sent sent = encode(method, reference, words);
      expect_same(reference, words, sent.bytes);
      reference.commit(sent.update, words);
    }
  }
}

// Some momentum messages in, so that streams, differences and held tables are there to be damaged.
struct Damaged {
  Reference reference{Keeps::kWordsAndDifferences, 3000};
  Words words = weights(3000, 1);
  Bytes message;
  DevicePlan plan;

  Damaged() {
    EncodeOptions options;
    options.chunk_words = 1000;
    for (int step = 0; step < 4; ++step) {
      const Sent sent = encode(Method::kMomentum, reference, words, options);
      message = sent.bytes;
      if (step == 3) break;
      reference.commit(sent.update, words);
      words = stepped(words, 7);
    }
    plan = device_plan(reference, message);
  }
  std::size_t faults(const Bytes& bytes) const {
    Words decoded(words.size());
    std::size_t count = 0;
    for (const DeviceChunk& chunk : decoded_by_warps(plan, reference, bytes, false, decoded)) {
      count += chunk.fault != ChunkFault::kNone;
    }
    return count;
  }
};

TEST(DeviceMessage, AFlippedBitOrACutIsAFault) {
  const Damaged d;
  ASSERT_EQ(d.faults(d.message), 0u);
  for (std::size_t at = d.plan.prefix_bytes; at < d.message.size(); at += 3) {
    Bytes bytes = d.message;
    bytes[at] ^= static_cast<std::byte>(1 << at % 8);
    ASSERT_GT(d.faults(bytes), 0u) << "byte " << at;
    bytes.resize(at);  // its memory ends here for a checker of addresses, too
    bytes.shrink_to_fit();
    ASSERT_GT(d.faults(bytes), 0u) << "cut at " << at;
  }
  Bytes longer = d.message;
  longer.push_back(std::byte{0});
  EXPECT_GT(d.faults(longer), 0u);
}

// As a reference that is not the sender's would make it: the bytes are sound, and what they decode to is not.
TEST(DeviceMessage, AnotherReferenceIsAFaultAndStaysInBounds) {
  Damaged d;
  for (std::byte& byte : d.reference.memory()) byte ^= std::byte{0x15};
  EXPECT_EQ(d.faults(d.message), 3u);
}

// Streams behind a good checksum that no encoder wrote.
TEST(DeviceCoders, RefuseRandomBytesAndStayInBounds) {
  const Damaged d;
  const auto held = d.reference.words();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Words random = noise(200 + seed, seed);
    std::vector<std::uint8_t> bytes(random.size() * 2);
    std::memcpy(bytes.data(), random.data(), bytes.size());
    bytes[2] = bytes[3] = 0;  // a number of halves that is not refused at once
    bytes[1] = 0;
    Words out(1000);
    EXPECT_FALSE(decode_difference(HostWarp{}, d.plan.tables, held.data(), d.reference.differences().data(),
                                   bytes.data(), static_cast<std::uint32_t>(bytes.size()), 1000, out.data()));
    const auto tables = EntropyTables::measure(d.words);
    const DeviceTables entropy = device_tables(nullptr, &tables);
    EXPECT_FALSE(decode_entropy(HostWarp{}, entropy, bytes.data(), static_cast<std::uint32_t>(bytes.size()),
                                100, out.data()));
  }
}

TEST(DeviceDifferences, PreviousDifferencesAreTheOracles) {
  for (const std::size_t n : {0, 1, 2, 33, 1000}) {
    const Words from = noise(n, 1), to = stepped(from, 2);
    std::vector<std::uint8_t> got(previous_bytes(n), 0xaa), expected(previous_bytes(n));
    run_threads(true, static_cast<std::int64_t>(got.size()),
                UpdatePrevious{from.data(), to.data(), n, got.data()});
    reference::update_previous(from, to, expected);
    EXPECT_EQ(got, expected);
  }
  for (std::uint32_t d = 0; d < 65536; ++d) {
    ASSERT_EQ(device_nibble_of(static_cast<std::uint16_t>(d)), nibble_of(static_cast<std::uint16_t>(d)));
  }
}

TEST(DevicePlan, RefusesWhatTheDeviceHasNotAndWhatDoesNotFit) {
  const Reference empty(Keeps::kWordsAndDifferences, 100);
  const Words words = weights(100, 1);
  EXPECT_THROW(device_plan(empty, encode(Method::kExponentReuse, empty, words).bytes), InvalidArgument);
  const Damaged d;
  EXPECT_THROW(device_plan(empty, d.message), CorruptData);
  EXPECT_THROW(device_plan(Reference(Keeps::kWordsAndDifferences, 3000), d.message), ReferenceDiffers);
  EXPECT_THROW(device_plan(d.reference, std::span(d.message).first(40)), CorruptData);
}

}  // namespace
}  // namespace moesaic::codec
