#include <algorithm>
#include <cstring>
#include <optional>

#include "moesaic/codec/chunk.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/entropy.h"
#include "moesaic/codec/message.h"
#include "moesaic/codec/planes.h"
#include "moesaic/codec/wire.h"
#include "moesaic/core/crc32c.h"

namespace moesaic::codec {
namespace {

constexpr std::size_t kMaxTablesBytes = std::max(DifferenceTables::kMaxBytes, EntropyTables::kBytes);
// Tables are measured anew at every so many commits, and when their frequencies cost this much more than the
// best: a part, and some bits a word.
constexpr std::uint64_t kRenewTables = 16;
constexpr double kAged = 1.02, kAgedBits = 0.005;

std::size_t chunk_count(std::size_t words, const EncodeOptions& options) {
  require(valid_chunk_words(options.chunk_words), "codec: got chunks of {} words, expected 2, 4, .. {}",
          options.chunk_words, kMaxChunkWords);
  return (words + options.chunk_words - 1) / options.chunk_words;
}

std::span<std::uint8_t> as_u8(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

// What a coder with these tables looks at.
std::span<const std::uint8_t> differences_for(const DifferenceTables& tables,
                                              std::span<const std::uint8_t> held) {
  return tables.predictor() == Predictor::kMomentum ? held : std::span<const std::uint8_t>();
}

}  // namespace

std::size_t message_bound(std::size_t words, const EncodeOptions& options) {
  const std::size_t chunks = chunk_count(words, options);
  const std::size_t last = std::min(words, options.chunk_words);
  // Only a coder's attempt may exceed the words themselves; it is then replaced by them.
  return kHeaderBytes + kMaxTablesBytes + chunks * kChunkHeaderBytes + words * 2 +
         std::max(encoded_bound(last), entropy_bound(last));
}

struct Encoder::State {
  const Reference& reference;
  std::span<const std::uint16_t> current;
  std::span<std::byte> out;
  std::span<std::uint16_t> received;
  Header header;
  std::optional<DifferenceTables> difference;
  bool held_tables = false;  // `difference` is what both ends hold
  double bits_per_word = 0;  // expected of `difference`
  std::optional<EntropyTables> entropy;
  Workspace work;
  std::size_t begin = 0;  // the first word that is not coded yet
  std::size_t bytes = 0;  // of the message so far
  Update update;
  bool whole = false;

  void choose_tables();
  bool use_held_tables();
  void write_header();
  void write_chunk();
  struct Payload {
    ChunkMode mode;
    std::size_t length;
  };
  Payload encode(std::span<const std::uint16_t> words, std::span<std::byte> payload);
  Payload encode_against_words(std::span<const std::uint16_t> words, std::span<std::byte> payload);
};

Encoder::Encoder(Method method, const Reference& reference, std::span<const std::uint16_t> current,
                 const EncodeOptions& options, std::span<std::byte> out, std::span<std::uint16_t> received) {
  const std::size_t words = current.size();
  require(words == reference.size(), "codec: got {} words, expected the reference's {}", words,
          reference.size());
  require(out.size() >= message_bound(words, options), "codec: got room for {} bytes, expected {}",
          out.size(), message_bound(words, options));
  require(reference.keeps() >= needs(method),
          "codec: {} needs {} bytes a word of the reference, which keeps {}", name_of(method),
          bytes_per_word(needs(method)), bytes_per_word(reference.keeps()));
  require(options.dtype == DType::kBF16 || method == Method::kRaw,
          "codec: got dtype {} for {}, expected bf16 (others travel as raw)", name_of(options.dtype),
          name_of(method));
  const std::size_t expected = lossless(method) ? 0 : words;
  require(received.size() == expected, "codec: {} got room for {} received words, expected {}",
          name_of(method), received.size(), expected);

  state_ = std::make_unique<State>(State{.reference = reference,
                                         .current = current,
                                         .out = out,
                                         .received = received,
                                         .header = {},
                                         .difference = {},
                                         .entropy = {},
                                         .work = Workspace(std::min(words, options.chunk_words)),
                                         .update = {}});
  Header& header = state_->header;
  header.dtype = options.dtype;
  header.method = method;
  header.key = options.key || !reference.valid();
  header.unit = options.unit;
  header.epoch = reference.epoch();
  header.words = words;
  header.reference_hash = header.key ? 0 : reference.hash();
  header.chunk_words = static_cast<std::uint32_t>(options.chunk_words);
  state_->update.chunk_words = options.chunk_words;
  state_->update.words_crcs.reserve(chunk_count(words, options));
  state_->choose_tables();
}

Encoder::~Encoder() = default;
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;

// Fills `difference` or `entropy`, where a chunk may use them.
void Encoder::State::choose_tables() {
  if (current.empty()) return;
  if (may_hold(header.method, header.key, ChunkMode::kEntropy)) entropy = EntropyTables::measure(current);
  if (!may_hold(header.method, header.key, ChunkMode::kResidual) || use_held_tables()) return;
  // The previous difference misleads when it is stale: after a skipped step, a jump of the learning rate.
  difference = header.method == Method::kMomentum
                   ? DifferenceTables::measure_best(reference.words(), reference.differences(), current)
                   : DifferenceTables::measure(Predictor::kReference, reference.words(), {}, current);
  bits_per_word = difference->bits_per_word();
}

// Measuring takes as long as coding some 100,000 words, and tables age slowly.
bool Encoder::State::use_held_tables() {
  if (reference.tables().empty()) return false;
  auto tables = DifferenceTables::read(reference.tables());
  const bool by_momentum = tables.predictor() == Predictor::kMomentum;
  const bool may_use_momentum = header.method == Method::kMomentum;
  if (by_momentum && !may_use_momentum) return false;
  if (reference.epoch() % kRenewTables == 0) return false;
  const auto price =
      tables.price(reference.words(), differences_for(tables, reference.differences()), current);
  if (price.bits_per_word > price.attainable * kAged + kAgedBits) return false;
  // Two messages after a key there are previous differences: they are tried until they help.
  if (may_use_momentum && !by_momentum) {
    const auto tried =
        DifferenceTables::measure(Predictor::kMomentum, reference.words(), reference.differences(), current);
    if (tried.bits_per_word() < price.bits_per_word) return false;
  }
  difference = std::move(tables);
  held_tables = true;
  bits_per_word = price.bits_per_word;
  return true;
}

void Encoder::State::write_header() {
  std::vector<std::uint8_t> tables;
  if (entropy) entropy->append_to(tables);
  if (difference) difference->append_to(tables);
  header.tables_bytes = held_tables ? 0 : static_cast<std::uint32_t>(tables.size());
  header.tables_crc = crc32c(std::as_bytes(std::span(tables)));
  write(header, out);
  std::ranges::copy(std::as_bytes(std::span(tables)).first(header.tables_bytes),
                    out.subspan(kHeaderBytes).begin());
  bytes = kHeaderBytes + header.tables_bytes;
  if (difference) {
    update.tables = std::move(tables);
  } else if (!header.key) {
    update.tables.assign(reference.tables().begin(), reference.tables().end());
  }
}

Encoder::State::Payload Encoder::State::encode(std::span<const std::uint16_t> words,
                                               std::span<std::byte> payload) {
  const auto held = held_chunk(reference, begin, words.size());
  if (header.method == Method::kInt8) {
    if (const auto length = encode_int8(words, payload)) return {ChunkMode::kInt8, *length};
  }
  if (!header.key && header.method == Method::kExponentReuse) {
    if (const auto length = encode_exponent_reuse(words, held, work, payload)) {
      return {ChunkMode::kExponentReuse, *length};
    }
  }
  if (entropy) {
    const std::size_t length = encode_entropy(*entropy, words, as_u8(payload));
    if (length < words.size_bytes()) return {ChunkMode::kEntropy, length};
  }
  if (difference) return encode_against_words(words, payload);
  encode_raw(words, payload);
  return {ChunkMode::kRaw, words.size_bytes()};
}

Encoder::State::Payload Encoder::State::encode_against_words(std::span<const std::uint16_t> words,
                                                             std::span<std::byte> payload) {
  const auto held = held_chunk(reference, begin, words.size());
  const std::size_t n = words.size();
  const std::size_t limit = most_listed(n, bits_per_word);
  const std::size_t changed = find_different(words, held.words, limit, work.index.data());
  if (changed == 0) return {ChunkMode::kSame, 0};
  const auto index = std::span<const std::uint16_t>(work.index).first(std::min(changed, limit));
  if (changed <= limit && changed <= kFewChanges) {
    return {ChunkMode::kSparse, encode_sparse(words, index, payload)};
  }
  const std::size_t length = encode_difference(
      *difference, held.words, differences_for(*difference, held.differences), words, as_u8(payload));
  if (changed <= limit && changed * 4 <= length) {
    return {ChunkMode::kSparse, encode_sparse(words, index, payload)};
  }
  if (length < words.size_bytes()) {
    const bool momentum = difference->predictor() == Predictor::kMomentum;
    return {momentum ? ChunkMode::kMomentum : ChunkMode::kResidual, length};
  }
  encode_raw(words, payload);
  return {ChunkMode::kRaw, words.size_bytes()};
}

void Encoder::State::write_chunk() {
  const std::size_t n = std::min<std::size_t>(header.chunk_words, current.size() - begin);
  std::span<const std::uint16_t> words = current.subspan(begin, n);
  const auto chunk = out.subspan(bytes);
  const auto payload = chunk.subspan(kChunkHeaderBytes);
  const auto [mode, length] = encode(words, payload);
  if (!received.empty()) {
    const auto decoded = received.subspan(begin, n);
    if (mode == ChunkMode::kInt8) {
      decode_int8(payload.first(length), decoded);
    } else {
      std::memmove(decoded.data(), words.data(), words.size_bytes());
    }
    words = decoded;
  }
  const std::uint32_t crc = crc32c(std::as_bytes(words));
  write({.mode = mode,
         .number = static_cast<std::uint32_t>(update.words_crcs.size()),
         .length = static_cast<std::uint32_t>(length),
         .words_crc = crc,
         .crc = 0},
        header.crc, chunk.first(kChunkHeaderBytes + length));
  update.words_crcs.push_back(crc);
  begin += n;
  bytes += kChunkHeaderBytes + length;
}

std::span<const std::byte> Encoder::next() {
  State& state = *state_;
  const std::size_t from = state.bytes;
  if (from == 0) state.write_header();
  if (state.begin < state.current.size()) state.write_chunk();
  if (state.begin == state.current.size() && !state.whole) {
    const Header& header = state.header;
    state.update.epoch = header.epoch;
    state.update.key = header.key;
    state.update.hash = hash_after(header.reference_hash, header.epoch, state.update.words_crcs);
    state.whole = true;
  }
  return state.out.subspan(from, state.bytes - from);
}

std::span<const std::byte> Encoder::all() {
  while (!next().empty()) {
  }
  return state_->out.first(state_->bytes);
}

const Update& Encoder::update() const {
  require(state_->whole, "codec: the update of a message of which {} of {} words are coded", state_->begin,
          state_->current.size());
  return state_->update;
}

}  // namespace moesaic::codec
