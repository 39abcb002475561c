// message_oracle.h: messages written from wire.h's tables a byte at a time, with a checksum that reads like
// its definition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/codec/ends.h"

namespace moesaic::codec::oracle {

// CRC32C, a bit at a time.
inline std::uint32_t crc32c(const Bytes& bytes, std::uint32_t seed = 0) {
  std::uint32_t crc = ~seed;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

inline void put(Bytes& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<std::byte>(value >> 8 * i));
}

inline Bytes little_endian(const Words& words) {
  Bytes bytes;
  for (const std::uint16_t word : words) put(bytes, word, 2);
  return bytes;
}

struct Chunk {
  int mode;
  Bytes payload;
  Words words;  // that it decodes to
};

struct Message {
  int dtype = 1, method = 0, key = 1;
  std::uint64_t unit = 0, epoch = 0, reference_hash = 0;
  std::uint32_t chunk_words = 65536;
  Bytes tables;
  std::vector<Chunk> chunks;

  Bytes bytes() const {
    std::uint64_t words = 0;
    for (const Chunk& chunk : chunks) words += chunk.words.size();
    Bytes out;
    put(out, 'M' | 'O' << 8 | 'E' << 16 | 'C' << 24, 4);
    put(out, 1, 1);
    put(out, static_cast<std::uint64_t>(dtype), 1);
    put(out, static_cast<std::uint64_t>(method), 1);
    put(out, static_cast<std::uint64_t>(key), 1);
    put(out, unit, 8);
    put(out, epoch, 8);
    put(out, words, 8);
    put(out, reference_hash, 8);
    put(out, chunk_words, 4);
    put(out, tables.size(), 4);
    put(out, tables.empty() ? 0 : crc32c(tables), 4);
    put(out, 0, 8);
    const std::uint32_t header_crc = crc32c(out);
    put(out, header_crc, 4);
    out.insert(out.end(), tables.begin(), tables.end());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      Bytes head;
      put(head, static_cast<std::uint64_t>(chunks[i].mode), 1);
      put(head, i, 3);
      put(head, chunks[i].payload.size(), 4);
      put(head, crc32c(little_endian(chunks[i].words)), 4);
      const std::uint32_t crc = crc32c(chunks[i].payload, crc32c(head, header_crc));
      put(head, crc, 4);
      out.insert(out.end(), head.begin(), head.end());
      out.insert(out.end(), chunks[i].payload.begin(), chunks[i].payload.end());
    }
    return out;
  }
};

inline std::uint8_t exponent_of(std::uint16_t word) { return static_cast<std::uint8_t>(word / 128 % 256); }

inline Bytes exponent_reuse_payload(const Words& reference, const Words& words) {
  Bytes payload;
  for (const std::uint16_t word : words) put(payload, word / 32768 * 128u + word % 128u, 1);
  std::vector<std::size_t> changed;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (exponent_of(words[i]) != exponent_of(reference[i])) changed.push_back(i);
  }
  for (const std::size_t i : changed) put(payload, i, 2);
  for (const std::size_t i : changed) put(payload, exponent_of(words[i]), 1);
  return payload;
}

inline Bytes sparse_payload(const Words& reference, const Words& words) {
  Bytes payload;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != reference[i]) put(payload, i, 2);
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != reference[i]) put(payload, words[i], 2);
  }
  return payload;
}

}  // namespace moesaic::codec::oracle
