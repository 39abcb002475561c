#include "moesaic/codec/chunk.h"

#include <array>
#include <cstring>

#include "moesaic/codec/difference.h"
#include "moesaic/codec/int8.h"
#include "moesaic/codec/message.h"
#include "moesaic/codec/planes.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

// A message may lie at any byte, so its numbers are copied, never pointed at.
template <typename T>
T load(std::span<const std::byte> from, std::size_t i) {
  T value;
  std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
  return value;
}

template <typename T>
void copy_out(const T* from, std::size_t n, std::span<std::byte> out) {
  if (n > 0) std::memcpy(out.first(n * sizeof(T)).data(), from, n * sizeof(T));
}

std::uint8_t* as_u8(std::span<std::byte> bytes) { return reinterpret_cast<std::uint8_t*>(bytes.data()); }
const std::uint8_t* as_u8(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

void expect_length(std::size_t got, std::size_t expected) {
  if (got != expected) throw CorruptData(fmt::format("payload of {} bytes, expected {}", got, expected));
}

// Indices ascend and stay below n.
void check_index(std::span<const std::byte> indices, std::size_t k, std::size_t n) {
  const std::size_t i = load<std::uint16_t>(indices, k);
  if (i >= n) throw CorruptData(fmt::format("index {} in a chunk of {} words", i, n));
  if (k > 0 && i <= load<std::uint16_t>(indices, k - 1)) {
    throw CorruptData(
        fmt::format("index {} after {}: they must ascend", i, load<std::uint16_t>(indices, k - 1)));
  }
}

// The exponents held of the chunk: as they are, or out of the words.
const std::uint8_t* held_exponents(const HeldChunk& held, Workspace& work) {
  if (held.words.empty()) return held.exponents.data();
  take_exponents(held.words, work.held.data());
  return work.held.data();
}

constexpr std::size_t kMaxBlocks = block_count(kMaxChunkWords);

}  // namespace

HeldChunk held_chunk(const Reference& reference, std::size_t begin, std::size_t words) {
  HeldChunk held;
  if (!reference.words().empty()) held.words = reference.words().subspan(begin, words);
  if (!reference.exponents().empty()) held.exponents = reference.exponents().subspan(begin, words);
  if (!reference.differences().empty()) {
    held.differences = reference.differences().subspan(begin / 2, previous_bytes(words));
  }
  return held;
}

void encode_raw(std::span<const std::uint16_t> words, std::span<std::byte> out) {
  copy_out(words.data(), words.size(), out);
}

void decode_raw(std::span<const std::byte> payload, std::span<std::uint16_t> words) {
  expect_length(payload.size(), words.size_bytes());
  if (!words.empty()) std::memcpy(words.data(), payload.data(), payload.size());
}

std::size_t encode_sparse(std::span<const std::uint16_t> words, std::span<const std::uint16_t> index,
                          std::span<std::byte> out) {
  copy_out(index.data(), index.size(), out);
  for (std::size_t k = 0; k < index.size(); ++k) {
    copy_out(&words[index[k]], 1, out.subspan((index.size() + k) * 2));
  }
  return index.size() * 4;
}

void decode_sparse(const HeldChunk& held, std::span<const std::byte> payload,
                   std::span<std::uint16_t> words) {
  const std::size_t changed = payload.size() / 4;
  expect_length(payload.size(), changed * 4);
  std::memcpy(words.data(), held.words.data(), words.size_bytes());
  for (std::size_t k = 0; k < changed; ++k) {
    check_index(payload, k, words.size());
    words[load<std::uint16_t>(payload, k)] = load<std::uint16_t>(payload, changed + k);
  }
}

std::optional<std::size_t> encode_exponent_reuse(std::span<const std::uint16_t> words, const HeldChunk& held,
                                                 Workspace& work, std::span<std::byte> out) {
  const std::size_t n = words.size();
  const std::size_t changed = split_planes(words, held_exponents(held, work), as_u8(out.first(n)),
                                           work.index.data(), work.exponent.data());
  const std::size_t length = n + changed * 3;
  if (length >= words.size_bytes()) return std::nullopt;
  copy_out(work.index.data(), changed, out.subspan(n));
  copy_out(work.exponent.data(), changed, out.subspan(n + changed * 2));
  return length;
}

void decode_exponent_reuse(const HeldChunk& held, std::span<const std::byte> payload, Workspace& work,
                           std::span<std::uint16_t> words) {
  const std::size_t n = words.size();
  if (payload.size() < n)
    throw CorruptData(fmt::format("payload of {} bytes for {} words", payload.size(), n));
  const auto plane = payload.first(n);
  const std::size_t changed = (payload.size() - n) / 3;
  expect_length(payload.size(), n + changed * 3);
  const auto indices = payload.subspan(n, changed * 2);
  const auto exponents = payload.subspan(n + changed * 2);
  join_planes(as_u8(plane), held_exponents(held, work), words);
  for (std::size_t k = 0; k < changed; ++k) {
    check_index(indices, k, n);
    std::uint16_t& word = words[load<std::uint16_t>(indices, k)];
    word = static_cast<std::uint16_t>((word & 0x807f) | load<std::uint8_t>(exponents, k) << 7);
  }
}

std::optional<std::size_t> encode_int8(std::span<const std::uint16_t> words, std::span<std::byte> out) {
  const std::size_t scale_bytes = block_count(words.size()) * 2;
  const std::size_t length = scale_bytes + words.size();
  if (length >= words.size_bytes()) return std::nullopt;
  std::array<std::uint16_t, kMaxBlocks> scales;
  const auto integers = out.subspan(scale_bytes, words.size());
  if (!quantise(words, scales.data(), reinterpret_cast<std::int8_t*>(integers.data()))) return std::nullopt;
  copy_out(scales.data(), scale_bytes / 2, out);
  return length;
}

void decode_int8(std::span<const std::byte> payload, std::span<std::uint16_t> words) {
  const std::size_t scale_bytes = block_count(words.size()) * 2;
  expect_length(payload.size(), scale_bytes + words.size());
  std::array<std::uint16_t, kMaxBlocks> scales;
  std::memcpy(scales.data(), payload.data(), scale_bytes);
  dequantise(scales.data(), reinterpret_cast<const std::int8_t*>(payload.data() + scale_bytes), words);
}

}  // namespace moesaic::codec
