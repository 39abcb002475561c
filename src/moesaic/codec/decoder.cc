#include <algorithm>
#include <cstring>
#include <optional>

#include "moesaic/codec/chunk.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/entropy.h"
#include "moesaic/codec/message.h"
#include "moesaic/codec/wire.h"
#include "moesaic/core/crc32c.h"

namespace moesaic::codec {
namespace {

bool is_difference(ChunkMode mode) { return mode == ChunkMode::kResidual || mode == ChunkMode::kMomentum; }

bool uses_reference(ChunkMode mode) {
  return mode == ChunkMode::kSame || mode == ChunkMode::kSparse || mode == ChunkMode::kExponentReuse ||
         is_difference(mode);
}

std::span<const std::uint8_t> as_u8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

struct Decoder::State {
  const Reference& reference;
  Expected expected;
  std::span<std::uint16_t> words;
  std::optional<Header> header;
  bool has_tables = false;
  std::optional<DifferenceTables> difference;
  std::optional<EntropyTables> entropy;
  Workspace work;
  std::size_t at = 0;     // bytes of the message that are done with
  std::size_t begin = 0;  // the first word that is not final
  Update update;
  bool whole = false;

  template <typename Failure, typename... Args>
  void check(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
    if (ok) return;
    throw Failure(fmt::format("codec message of unit {}: {}", expected.unit,
                              fmt::format(format, std::forward<Args>(args)...)));
  }
  void check_header() const;
  void take_tables(std::span<const std::byte> sent);
  void take_chunk(const ChunkHeader& chunk, std::span<const std::byte> payload);
  void decode(ChunkMode mode, std::span<const std::byte> payload, std::span<std::uint16_t> to);
};

Decoder::Decoder(const Reference& reference, const Expected& expected, std::span<std::uint16_t> words) {
  require(words.size() == reference.size(), "codec: got room for {} words, expected the reference's {}",
          words.size(), reference.size());
  state_ = std::make_unique<State>(State{.reference = reference,
                                         .expected = expected,
                                         .words = words,
                                         .header = {},
                                         .difference = {},
                                         .entropy = {},
                                         .work = Workspace(std::min(words.size(), kMaxChunkWords)),
                                         .update = {}});
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

void Decoder::State::check_header() const {
  check<CorruptData>(header->unit == expected.unit, "it says unit {}", header->unit);
  check<CorruptData>(header->dtype == expected.dtype, "got dtype {}, expected {}", name_of(header->dtype),
                     name_of(expected.dtype));
  check<CorruptData>(header->words == words.size(), "got {} words, expected {}", header->words, words.size());
  if (header->key) return;
  check<ReferenceDiffers>(reference.valid(), "it differs from epoch {}, but nothing is held", header->epoch);
  check<ReferenceDiffers>(header->epoch == reference.epoch(),
                          "it differs from epoch {}, but epoch {} is held", header->epoch, reference.epoch());
  check<ReferenceDiffers>(header->reference_hash == reference.hash(),
                          "it differs from words of hash {:#018x}, but those of {:#018x} are held",
                          header->reference_hash, reference.hash());
  check<ReferenceDiffers>(
      reference.keeps() >= needs(header->method), "{} needs {} bytes a word of the reference, which keeps {}",
      name_of(header->method), bytes_per_word(needs(header->method)), bytes_per_word(reference.keeps()));
}

void Decoder::State::take_tables(std::span<const std::byte> sent) {
  has_tables = true;
  if (!header->key) update.tables.assign(reference.tables().begin(), reference.tables().end());
  if (header->tables_bytes == 0 && header->tables_crc == 0) return;  // none in use
  const bool of_difference = may_hold(header->method, header->key, ChunkMode::kResidual);
  const bool held = sent.empty();
  check<CorruptData>(of_difference || may_hold(header->method, header->key, ChunkMode::kEntropy),
                     "it has tables, which {} does not use", name_of(header->method));
  check<CorruptData>(of_difference || !held, "it re-uses tables, which {} cannot", name_of(header->method));
  const auto tables = held ? reference.tables() : as_u8(sent);
  const std::uint32_t crc = crc32c(std::as_bytes(tables));
  if (held) {
    check<ReferenceDiffers>(crc == header->tables_crc,
                            "it re-uses tables of checksum {:#010x}, but those of {:#010x} are held",
                            header->tables_crc, crc);
  } else {
    check<CorruptData>(crc == header->tables_crc,
                       "the tables' checksum is {:#010x}, their bytes give {:#010x}", header->tables_crc,
                       crc);
  }
  if (of_difference) {
    difference = DifferenceTables::read(tables);
    update.tables.assign(tables.begin(), tables.end());
  } else {
    entropy = EntropyTables::read(tables);
  }
}

void Decoder::State::decode(ChunkMode mode, std::span<const std::byte> payload, std::span<std::uint16_t> to) {
  const auto held = held_chunk(reference, begin, to.size());
  switch (mode) {
    case ChunkMode::kRaw:
      return decode_raw(payload, to);
    case ChunkMode::kSame:
      // As sparse, with nothing in the list.
    case ChunkMode::kSparse:
      return decode_sparse(held, payload, to);
    case ChunkMode::kExponentReuse:
      return decode_exponent_reuse(held, payload, work, to);
    case ChunkMode::kInt8:
      return decode_int8(payload, to);
    case ChunkMode::kEntropy:
      return decode_entropy(*entropy, as_u8(payload), to);
    case ChunkMode::kResidual:
      return decode_difference(*difference, held.words, {}, as_u8(payload), to);
    case ChunkMode::kMomentum:
      return decode_difference(*difference, held.words, held.differences, as_u8(payload), to);
  }
}

void Decoder::State::take_chunk(const ChunkHeader& chunk, std::span<const std::byte> payload) {
  const std::size_t number = update.words_crcs.size();
  check<CorruptData>(chunk.number == (number & 0xffffff), "got chunk {}, expected {}", chunk.number, number);
  check<CorruptData>(static_cast<std::uint8_t>(chunk.mode) < kNumChunkModes,
                     "chunk {}: got mode {}, expected less than {}", number,
                     static_cast<std::uint8_t>(chunk.mode), kNumChunkModes);
  const auto mode = name_of(chunk.mode);
  check<CorruptData>(may_hold(header->method, header->key, chunk.mode), "chunk {}: {} in a {} of {}", number,
                     mode, header->key ? "key" : "message", name_of(header->method));
  check<CorruptData>(chunk.mode != ChunkMode::kSame || payload.empty(),
                     "chunk {}: same with {} bytes of payload", number, payload.size());
  check<CorruptData>(chunk.mode != ChunkMode::kEntropy || entropy.has_value(), "chunk {}: {} without tables",
                     number, mode);
  if (is_difference(chunk.mode)) {
    const auto predictor = chunk.mode == ChunkMode::kMomentum ? Predictor::kMomentum : Predictor::kReference;
    check<CorruptData>(difference.has_value() && difference->predictor() == predictor,
                       "chunk {}: {} without its tables", number, mode);
  }

  const auto to = words.subspan(begin, std::min<std::size_t>(header->chunk_words, words.size() - begin));
  try {
    decode(chunk.mode, payload, to);
  } catch (const CorruptData& error) {
    // The payload is as it was sent, and what a coder makes of it hangs on the reference as well.
    check<ReferenceDiffers>(!is_difference(chunk.mode), "chunk {}: {}, with the reference held: {}", number,
                            mode, error.what());
    check<CorruptData>(false, "chunk {}: {}: {}", number, mode, error.what());
  }
  const std::uint32_t crc = crc32c(std::as_bytes(to));
  if (crc != chunk.words_crc) {
    check<ReferenceDiffers>(!uses_reference(chunk.mode),
                            "chunk {}: {} gives words of checksum {:#010x}, expected {:#010x}: the reference "
                            "held is not the sender's",
                            number, mode, crc, chunk.words_crc);
    check<CorruptData>(false, "chunk {}: {} gives words of checksum {:#010x}, expected {:#010x}", number,
                       mode, crc, chunk.words_crc);
  }
  update.words_crcs.push_back(crc);
  begin += to.size();
}

std::size_t Decoder::advance(std::span<const std::byte> message) {
  State& state = *state_;
  if (!state.header) {
    if (message.size() < kHeaderBytes) return 0;
    state.header = read_header(message);
    state.check_header();
    state.update.chunk_words = state.header->chunk_words;
    state.at = kHeaderBytes;
  }
  const Header& header = *state.header;
  if (!state.has_tables) {
    if (message.size() - state.at < header.tables_bytes) return 0;
    state.take_tables(message.subspan(state.at, header.tables_bytes));
    state.at += header.tables_bytes;
  }
  while (state.begin < state.words.size()) {
    const std::size_t left = message.size() - state.at;
    if (left < kChunkHeaderBytes) return state.begin;
    const ChunkHeader chunk = read_chunk_header(message.subspan(state.at));
    const std::size_t n = std::min<std::size_t>(header.chunk_words, state.words.size() - state.begin);
    // Before its checksum can be checked: nobody must wait for bytes that will never come.
    state.check<CorruptData>(chunk.length <= n * 2,
                             "chunk {}: got {} bytes for {} words, expected at most {}",
                             state.update.words_crcs.size(), chunk.length, n, n * 2);
    if (left < kChunkHeaderBytes + chunk.length) return state.begin;
    const auto bytes = message.subspan(state.at, kChunkHeaderBytes + chunk.length);
    const std::uint32_t crc = chunk_crc(header.crc, bytes);
    state.check<CorruptData>(crc == chunk.crc, "chunk {}: the checksum is {:#010x}, the bytes give {:#010x}",
                             state.update.words_crcs.size(), chunk.crc, crc);
    state.take_chunk(chunk, bytes.subspan(kChunkHeaderBytes));
    state.at += bytes.size();
  }
  state.check<CorruptData>(message.size() == state.at, "got {} bytes, expected {}", message.size(), state.at);
  if (!state.whole) {
    state.update.epoch = header.epoch;
    state.update.key = header.key;
    state.update.hash = hash_after(header.reference_hash, header.epoch, state.update.words_crcs);
    state.whole = true;
  }
  return state.begin;
}

const Update& Decoder::finish(std::span<const std::byte> message) {
  advance(message);
  state_->check<CorruptData>(state_->whole, "cut after {} bytes, at word {} of {}", message.size(),
                             state_->begin, state_->words.size());
  return state_->update;
}

const Update& Decoder::update() const {
  require(state_->whole, "codec: the update of a message of which {} of {} words are decoded", state_->begin,
          state_->words.size());
  return state_->update;
}

}  // namespace moesaic::codec
