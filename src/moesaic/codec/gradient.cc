#include "moesaic/codec/gradient.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "moesaic/codec/chunk.h"
#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/difference.h"
#include "moesaic/codec/entropy.h"
#include "moesaic/codec/gradient_format.h"
#include "moesaic/codec/sample.h"
#include "moesaic/core/crc32c.h"

namespace moesaic::codec {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"bf16", "entropy", "int8"};

std::span<std::uint8_t> as_u8(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}
std::span<const std::uint8_t> as_u8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

bool all_zero(std::span<const std::uint16_t> words) {
  return std::ranges::all_of(words, [](std::uint16_t word) { return word == 0; });
}

// The words of block b.
template <typename Word>
std::span<Word> block_of(std::span<Word> words, std::size_t b) {
  const std::size_t begin = b * kBlockWords;
  return words.subspan(begin, std::min(kBlockWords, words.size() - begin));
}

bool is_live(std::span<const std::byte> bitmap, std::size_t b) {
  return (std::to_integer<unsigned>(bitmap[b / 8]) >> b % 8 & 1) != 0;
}

// What the entropy wire knows of the words before it codes them.
struct Side {
  GradientScales scales;
  EntropyTables tables;
};

Side measure(std::span<const GradientPiece> pieces, std::span<const std::uint16_t> words) {
  GradientScales scales = GradientScales::measure(pieces, words);
  std::vector<std::uint16_t> sample;
  for_each_sampled_run(words.size(), [&](std::size_t begin, std::size_t end) {
    const auto run = words.subspan(begin, end - begin);
    if (all_zero(run)) return;
    sample.resize(sample.size() + run.size());
    scales.shift(begin, run, sample.data() + sample.size() - run.size());
  });
  return {std::move(scales), EntropyTables::measure(sample)};
}

class Encoding {
 public:
  Encoding(GradientWire wire, std::span<const std::uint16_t> words, std::span<const GradientPiece> pieces,
           const GradientOptions& options, std::span<std::byte> out)
      : wire_(wire), words_(words), options_(options), out_(out) {
    std::vector<std::uint8_t> side;
    if (wire == GradientWire::kEntropy && !words.empty()) {
      side_ = measure(pieces, words);
      side_->scales.append_to(side);
      side_->tables.append_to(side);
    }
    GradientHeader header{.wire = wire,
                          .unit = options.unit,
                          .words = words.size(),
                          .chunk_words = static_cast<std::uint32_t>(options.chunk_words),
                          .side_bytes = static_cast<std::uint32_t>(side.size()),
                          .side_crc = crc32c(std::as_bytes(std::span(side)))};
    write(header, out);
    header_crc_ = header.crc;
    std::ranges::copy(std::as_bytes(std::span(side)), out.subspan(kGradientHeaderBytes).begin());
    bytes_ = kGradientHeaderBytes + side.size();
  }

  GradientMessage run() {
    std::vector<std::uint16_t> work(std::min(words_.size(), options_.chunk_words));
    for (std::size_t begin = 0; begin < words_.size(); begin += options_.chunk_words) {
      write_chunk(begin, work);
    }
    return {.bytes = bytes_, .live_words = live_words_};
  }

 private:
  void write_chunk(std::size_t begin, std::span<std::uint16_t> work) {
    const auto words = words_.subspan(begin, std::min(options_.chunk_words, words_.size() - begin));
    const auto chunk = out_.subspan(bytes_);
    const auto payload = chunk.subspan(kChunkHeaderBytes);
    ChunkHeader header{.number = static_cast<std::uint32_t>(begin / options_.chunk_words)};
    const std::size_t bitmap = bitmap_bytes(words.size());
    const std::size_t live = find_live(words, payload.first(bitmap));
    live_words_ += live;
    if (live > 0) {
      const auto [mode, length] = encode(begin, words, live, payload, work);
      header.mode = mode;
      header.length = static_cast<std::uint32_t>(bitmap + length);
    }
    write(header, header_crc_, chunk.first(kChunkHeaderBytes + header.length));
    bytes_ += kChunkHeaderBytes + header.length;
  }

  // Sets the bits of blocks that are not zero; returns how many words they have.
  static std::size_t find_live(std::span<const std::uint16_t> words, std::span<std::byte> bitmap) {
    std::ranges::fill(bitmap, std::byte{0});
    std::size_t live = 0;
    for (std::size_t b = 0; b < block_count(words.size()); ++b) {
      const auto block = block_of(words, b);
      if (all_zero(block)) continue;
      bitmap[b / 8] |= std::byte{1} << b % 8;
      live += block.size();
    }
    return live;
  }

  struct Payload {
    ChunkMode mode;
    std::size_t length;  // behind the bitmap
  };

  Payload encode(std::size_t begin, std::span<const std::uint16_t> words, std::size_t live,
                 std::span<std::byte> payload, std::span<std::uint16_t> work) {
    const auto bitmap = payload.first(bitmap_bytes(words.size()));
    const auto coded = payload.subspan(bitmap.size());
    if (wire_ == GradientWire::kEntropy) {
      side_->scales.shift(begin, words, work.data());
      const auto shifted = only_live(work.first(words.size()), live, bitmap, work);
      const std::size_t length = encode_entropy(side_->tables, shifted, as_u8(coded));
      if (length < 2 * live) return {ChunkMode::kEntropy, length};
    }
    const auto sent = only_live(words, live, bitmap, work);
    if (wire_ == GradientWire::kInt8) {
      if (const auto length = encode_int8(sent, coded)) return {ChunkMode::kInt8, *length};
    }
    encode_raw(sent, coded);
    return {ChunkMode::kRaw, 2 * live};
  }

  // The words of live blocks, one after the other: as they lie where that is all, else in `work`, which may
  // be where they are.
  static std::span<const std::uint16_t> only_live(std::span<const std::uint16_t> words, std::size_t live,
                                                  std::span<const std::byte> bitmap,
                                                  std::span<std::uint16_t> work) {
    if (live == words.size()) return words;
    std::size_t end = 0;
    for (std::size_t b = 0; b < block_count(words.size()); ++b) {
      if (!is_live(bitmap, b)) continue;
      const auto block = block_of(words, b);
      std::memmove(work.subspan(end).data(), block.data(), block.size_bytes());  // never past where it reads
      end += block.size();
    }
    return work.first(live);
  }

  GradientWire wire_;
  std::span<const std::uint16_t> words_;
  const GradientOptions& options_;
  std::span<std::byte> out_;
  std::optional<Side> side_;
  std::uint32_t header_crc_ = 0;
  std::size_t bytes_ = 0;
  std::size_t live_words_ = 0;
};

class Decoding {
 public:
  Decoding(std::span<const std::byte> message, std::uint64_t unit, std::span<std::uint16_t> words)
      : header_(read_gradient_header(message)), words_(words) {
    check_bytes(header_.unit == unit, "got unit {}, expected {}", header_.unit, unit);
    check_bytes(header_.words == words.size(), "got {} words, expected {}", header_.words, words.size());
    rest_ = message.subspan(kGradientHeaderBytes);
    check_bytes(header_.side_bytes <= rest_.size(), "{} bytes left, expected {} of scales", rest_.size(),
                header_.side_bytes);
    const auto side = rest_.first(header_.side_bytes);
    rest_ = rest_.subspan(header_.side_bytes);
    const std::uint32_t crc = crc32c(side);
    check_bytes(crc == header_.side_crc, "the scales' checksum is {:#010x}, their bytes give {:#010x}",
                header_.side_crc, crc);
    const bool has_side = header_.wire == GradientWire::kEntropy && !words.empty();
    check_bytes(has_side || side.empty(), "got {} bytes of scales, expected none", side.size());
    if (!has_side) return;
    auto bytes = as_u8(side);
    GradientScales scales = GradientScales::read(bytes, words.size());
    side_ = {std::move(scales), EntropyTables::read(bytes)};
  }

  GradientWire run() {
    std::vector<std::uint16_t> work(std::min<std::size_t>(words_.size(), header_.chunk_words));
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < words_.size(); begin += header_.chunk_words, ++number) {
      take_chunk(number, begin, work);
    }
    check_bytes(rest_.empty(), "{} bytes left over, expected none", rest_.size());
    return header_.wire;
  }

 private:
  void take_chunk(std::size_t number, std::size_t begin, std::span<std::uint16_t> work) {
    check_bytes(rest_.size() >= kChunkHeaderBytes, "chunk {}: {} bytes left, expected {} or more", number,
                rest_.size(), kChunkHeaderBytes);
    const ChunkHeader chunk = read_chunk_header(rest_);
    check_bytes(chunk.length <= rest_.size() - kChunkHeaderBytes, "chunk {}: {} bytes left, expected {}",
                number, rest_.size() - kChunkHeaderBytes, chunk.length);
    const auto bytes = rest_.first(kChunkHeaderBytes + chunk.length);
    rest_ = rest_.subspan(bytes.size());
    const std::uint32_t crc = chunk_crc(header_.crc, bytes);
    check_bytes(crc == chunk.crc, "chunk {}: the checksum is {:#010x}, the bytes give {:#010x}", number,
                chunk.crc, crc);
    check_bytes(chunk.number == (number & 0xffffff), "got chunk {}, expected {}", chunk.number, number);
    check_bytes(chunk.words_crc == 0, "chunk {}: got {:#x} where a gradient's chunk has zeros", number,
                chunk.words_crc);
    const auto words =
        words_.subspan(begin, std::min<std::size_t>(header_.chunk_words, words_.size() - begin));
    if (chunk.length == 0) {
      check_bytes(chunk.mode == ChunkMode::kRaw, "chunk {}: got mode {} for zeros", number,
                  static_cast<int>(chunk.mode));
      std::ranges::fill(words, std::uint16_t{0});
      return;
    }
    decode(number, begin, chunk.mode, bytes.subspan(kChunkHeaderBytes), words, work);
  }

  void decode(std::size_t number, std::size_t begin, ChunkMode mode, std::span<const std::byte> payload,
              std::span<std::uint16_t> words, std::span<std::uint16_t> work) {
    const std::size_t blocks = block_count(words.size());
    check_bytes(payload.size() >= bitmap_bytes(words.size()), "chunk {}: got {} bytes, expected {} or more",
                number, payload.size(), bitmap_bytes(words.size()));
    const auto bitmap = payload.first(bitmap_bytes(words.size()));
    const auto coded = payload.subspan(bitmap.size());
    for (std::size_t b = blocks; b < bitmap.size() * 8; ++b) {
      check_bytes(!is_live(bitmap, b), "chunk {}: block {} of {} is marked", number, b, blocks);
    }
    std::size_t live = 0;
    for (std::size_t b = 0; b < blocks; ++b) live += is_live(bitmap, b) ? block_of(words, b).size() : 0;
    check_bytes(live > 0, "chunk {}: no block is marked, yet there are {} bytes", number, payload.size());

    const auto sent = live == words.size() ? words : work.first(live);
    const bool may = mode == ChunkMode::kRaw ||
                     (mode == ChunkMode::kEntropy && header_.wire == GradientWire::kEntropy) ||
                     (mode == ChunkMode::kInt8 && header_.wire == GradientWire::kInt8);
    check_bytes(may, "chunk {}: got mode {} on the wire {}", number, static_cast<int>(mode),
                name_of(header_.wire));
    if (mode == ChunkMode::kRaw) decode_raw(coded, sent);
    if (mode == ChunkMode::kInt8) decode_int8(coded, sent);
    if (mode == ChunkMode::kEntropy) decode_entropy(side_->tables, as_u8(coded), sent);
    if (live < words.size()) spread(sent, bitmap, words);
    if (mode == ChunkMode::kEntropy) side_->scales.unshift(begin, words, words.data());
  }

  // The words of live blocks to their places, zeros to the others.
  static void spread(std::span<const std::uint16_t> sent, std::span<const std::byte> bitmap,
                     std::span<std::uint16_t> words) {
    for (std::size_t b = 0; b < block_count(words.size()); ++b) {
      const auto block = block_of(words, b);
      if (is_live(bitmap, b)) {
        std::ranges::copy(sent.first(block.size()), block.begin());
        sent = sent.subspan(block.size());
      } else {
        std::ranges::fill(block, std::uint16_t{0});
      }
    }
  }

  GradientHeader header_;
  std::span<std::uint16_t> words_;
  std::span<const std::byte> rest_;
  std::optional<Side> side_;
};

void check_chunk_words(const GradientOptions& options) {
  require(valid_chunk_words(options.chunk_words), "gradient: got chunks of {} words, expected 2, 4, .. {}",
          options.chunk_words, kMaxChunkWords);
}

}  // namespace

std::string_view name_of(GradientWire wire) { return kNames.at(static_cast<std::size_t>(wire)); }

GradientWire gradient_wire_from_name(std::string_view name) {
  for (const GradientWire wire : kGradientWires) {
    if (name_of(wire) == name) return wire;
  }
  throw InvalidArgument(fmt::format("gradient wire: got \"{}\", expected {}", name, fmt::join(kNames, ", ")));
}

bool lossless(GradientWire wire) { return wire != GradientWire::kInt8; }

std::size_t gradient_bound(std::span<const GradientPiece> pieces, const GradientOptions& options) {
  check_chunk_words(options);
  const std::size_t side = GradientScales::bytes_bound(pieces) + EntropyTables::kBytes;
  require(side <= std::numeric_limits<std::uint32_t>::max(),
          "gradient: its scales take up to {} bytes; a message has room for 2^32 - 1", side);
  std::size_t words = 0;
  for (const GradientPiece& piece : pieces) words += piece.words;
  const std::size_t chunks = (words + options.chunk_words - 1) / options.chunk_words;
  const std::size_t largest = std::min(words, options.chunk_words);
  // Only a coder's attempt may exceed the words themselves; it is then replaced by them.
  return kGradientHeaderBytes + side + chunks * (kChunkHeaderBytes + bitmap_bytes(largest)) + words * 2 +
         entropy_bound(largest);
}

GradientMessage encode_gradient(GradientWire wire, std::span<const std::uint16_t> words,
                                std::span<const GradientPiece> pieces, const GradientOptions& options,
                                std::span<std::byte> out) {
  const std::size_t bound = gradient_bound(pieces, options);
  std::uint64_t in_pieces = 0;
  for (const GradientPiece& piece : pieces) in_pieces += piece.words;
  require(in_pieces == words.size(), "gradient: got {} words, expected the {} of its pieces", words.size(),
          in_pieces);
  require(out.size() >= bound, "gradient: got room for {} bytes, expected {}", out.size(), bound);
  return Encoding(wire, words, pieces, options, out).run();
}

GradientWire decode_gradient(std::span<const std::byte> message, std::uint64_t unit,
                             std::span<std::uint16_t> words) {
  try {
    return Decoding(message, unit, words).run();
  } catch (const CorruptData& error) {
    throw CorruptData(fmt::format("gradient message of unit {}: {}", unit, error.what()));
  }
}

}  // namespace moesaic::codec
