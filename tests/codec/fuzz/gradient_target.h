// gradient_target.h: inputs of the gradient wires' fuzzer, as target.h has them for the methods.
//
// A byte of flags. With kRoundTrip: then a byte that picks the wire, rows, columns and offset of a byte each,
// words; they must come back. Else: a byte that picks a size, a message; decoding it must give words or
// CorruptData. With kRepair, its checksums and what the receiver compares are made to fit first.
#pragma once

#include "moesaic/codec/gradient_format.h"
#include "tests/codec/fuzz/target.h"
#include "tests/codec/gradients.h"

namespace moesaic::codec::fuzz {

inline constexpr std::uint8_t kRoundTrip = 2;  // beside kRepair

inline constexpr std::array<std::size_t, 6> kGradientSizes = {0, 1, 100, 257, 4'500, 9'000};

// Shapes with scales of rows and columns, begun inside a row.
inline GradientPiece gradient_piece(std::size_t words) { return {words, 70, 64, 130}; }

inline void repair_gradient(std::size_t words, std::span<std::byte> message) {
  if (message.size() < kGradientHeaderBytes) return;
  GradientHeader header;
  header.wire = static_cast<GradientWire>(message[5]);
  header.words = words;
  std::memcpy(&header.chunk_words, message.data() + 24, 4);
  std::memcpy(&header.side_bytes, message.data() + 28, 4);
  auto rest = message.subspan(kGradientHeaderBytes);
  const std::size_t side = std::min<std::size_t>(header.side_bytes, rest.size());
  header.side_crc = crc32c(rest.first(side));
  write(header, message);
  rest = rest.subspan(side);
  for (std::uint32_t number = 0; rest.size() >= kChunkHeaderBytes; ++number) {
    ChunkHeader chunk = read_chunk_header(rest);
    chunk.number = number;
    chunk.words_crc = 0;
    if (chunk.length > rest.size() - kChunkHeaderBytes) return;
    write(chunk, header.crc, rest.first(kChunkHeaderBytes + chunk.length));
    rest = rest.subspan(kChunkHeaderBytes + chunk.length);
  }
}

inline void gradient_round_trip(std::span<const std::uint8_t> data) {
  if (data.size() < 4) return;
  const GradientWire wire = kGradientWires[data[0] % std::size(kGradientWires)];
  Words words((data.size() - 4) / 2);
  if (!words.empty()) std::memcpy(words.data(), data.data() + 4, words.size() * 2);
  const std::vector<GradientPiece> pieces = {{words.size(), data[1] + 1u, data[2] + 1u, data[3]}};
  const Words got = decode_words(encode(wire, words, pieces), words.size());
  must(!lossless(wire) || got == words);
}

inline void gradient(std::span<const std::uint8_t> data) {
  if (data.size() < 2) return;
  const std::uint8_t flags = data[0];
  if (flags & kRoundTrip) return gradient_round_trip(data.subspan(1));
  const std::size_t words = kGradientSizes[data[1] % kGradientSizes.size()];
  data = data.subspan(2);
  // Of its own, so that a sanitizer sees a byte past its end.
  const auto bytes = std::make_unique<std::byte[]>(data.size());
  const std::span message(bytes.get(), data.size());
  std::ranges::copy(std::as_bytes(data), message.begin());
  if (flags & kRepair) repair_gradient(words, message);
  const auto decoded = std::make_unique<std::uint16_t[]>(words);
  try {
    decode_gradient(message, 0, {decoded.get(), words});
  } catch (const CorruptData&) {
    // As it should be.
  }
}

inline std::vector<Input> gradient_seeds() {
  std::vector<Input> all;
  for (std::uint8_t size = 0; size < kGradientSizes.size(); ++size) {
    const GradientPiece piece = gradient_piece(kGradientSizes[size]);
    Words words = gradients(piece, 1);
    for (std::size_t i = 130; i < words.size() / 2; ++i) words[i] = 0;
    for (std::uint8_t wire = 0; wire < std::size(kGradientWires); ++wire) {
      const Bytes sent = encode(kGradientWires[wire], words, {piece}, {.chunk_words = 2'048});
      for (const std::uint8_t flags : {std::uint8_t{0}, kRepair}) {
        Input input = {flags, size};
        for (const std::byte byte : sent) input.push_back(static_cast<std::uint8_t>(byte));
        all.push_back(std::move(input));
      }
      if (words.size() > 300) continue;
      Input input = {kRoundTrip, wire, 69, 63, 130};
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data());
      input.insert(input.end(), bytes, bytes + words.size() * 2);
      all.push_back(std::move(input));
    }
  }
  return all;
}

}  // namespace moesaic::codec::fuzz
