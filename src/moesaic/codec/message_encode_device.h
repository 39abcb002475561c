// message_encode_device.h: chunks into a message: EncodeChunk for each, PlaceChunks once, WriteChunk for
// each.
#pragma once

#include <cstdint>

#include "moesaic/codec/chunk_mode.h"
#include "moesaic/codec/message_device.h"

namespace moesaic::codec {

// Task: a chunk. Its payload goes to its own room.
struct EncodeChunk {
  DevicePart part;
  const std::uint16_t* current;
  double bits_per_word;      // expected of the tables of differences
  std::uint8_t* room;        // room_bytes for each chunk
  std::uint64_t room_bytes;  // of the larger of both coders' bounds
  DeviceChunk* chunks;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t chunk) const {
    const DeviceTables& tables = *part.tables;
    const std::uint32_t n = part.words_of(chunk);
    const std::uint16_t* words = current + part.begin(chunk);
    std::uint8_t* payload = room + static_cast<std::uint64_t>(chunk) * room_bytes;
    DeviceChunk result = {0, 0, words_crc_of(warp, tables, words, n), ChunkMode::kRaw, ChunkFault::kNone};
    bool coded = false;
    if (tables.has_entropy) {
      result.mode = ChunkMode::kEntropy;
      result.length = encode_entropy(warp, tables, words, n, payload);
      coded = result.length < 2 * n;
    }
    if (!coded && tables.has_difference) coded = encode_against_words(warp, chunk, words, n, payload, result);
    warp.sync();
    if (!coded) {
      result.mode = ChunkMode::kRaw;
      result.length = 2 * n;
      warp.each([&](unsigned lane) {
        for (std::uint32_t i = lane; i < n; i += kWarpLanes) put2(payload + 2 * i, words[i]);
      });
    }
    warp.each([&](unsigned lane) {
      if (lane == 0) chunks[chunk] = result;
    });
  }

 private:
  // False where the words themselves are shorter.
  template <class Warp>
  MOESAIC_DEVICE bool encode_against_words(const Warp& warp, std::int64_t chunk, const std::uint16_t* words,
                                           std::uint32_t n, std::uint8_t* payload,
                                           DeviceChunk& result) const {
    const DeviceTables& tables = *part.tables;
    const std::uint16_t* held = part.reference + part.begin(chunk);
    const std::uint32_t changed = list_changes(warp, words, held, n, 0, nullptr);
    const auto limit = static_cast<std::uint32_t>(most_listed(n, bits_per_word));
    result.mode = changed == 0 ? ChunkMode::kSame : ChunkMode::kSparse;
    result.length = 4 * changed;
    if (changed == 0) return true;
    bool listed = changed <= limit && changed <= kFewChanges;
    if (!listed) {
      const std::uint32_t length =
          encode_difference(warp, tables, held, part.differences_of(chunk), words, n, payload);
      listed = changed <= limit && 4 * changed <= length;
      if (!listed) {
        result.mode = tables.momentum ? ChunkMode::kMomentum : ChunkMode::kResidual;
        result.length = length;
        return length < 2 * n;
      }
    }
    warp.sync();
    list_changes(warp, words, held, n, changed, payload);
    return true;
  }

  // How many words are not the held ones; with a payload, lists them there: indices, then words.
  template <class Warp>
  MOESAIC_DEVICE std::uint32_t list_changes(const Warp& warp, const std::uint16_t* words,
                                            const std::uint16_t* held, std::uint32_t n, std::uint32_t all,
                                            std::uint8_t* payload) const {
    std::uint32_t found = 0;
    for (std::uint32_t begin = 0; begin < n; begin += kWarpLanes) {
      Each<Warp, bool> differs;
      warp.each([&](unsigned lane) {
        const std::uint32_t i = begin + lane;
        differs[lane] = i < n && words[i] != held[i];
      });
      const std::uint32_t lanes = warp.ballot(differs);
      warp.each([&](unsigned lane) {
        if (payload == nullptr || !differs[lane]) return;
        const std::uint32_t k = found + count_lanes(lanes & lanes_below(lane));
        put2(payload + 2 * k, begin + lane);
        put2(payload + 2 * (all + k), words[begin + lane]);
      });
      found += count_lanes(lanes);
    }
    return found;
  }
};

// One task: where each chunk lies in the message, and how long that is.
struct PlaceChunks {
  DevicePart part;
  std::int64_t num_chunks;
  DeviceChunk* chunks;
  std::uint64_t* message_bytes;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t) const {
    warp.each([&](unsigned lane) {
      if (lane != 0) return;
      std::uint64_t at = part.prefix_bytes;
      for (std::int64_t i = 0; i < num_chunks; ++i) {
        chunks[i].offset = at;
        at += kChunkHeaderBytes + chunks[i].length;
      }
      *message_bytes = at;
    });
  }
};

// Task: a chunk, out of its room into the message, with its header.
struct WriteChunk {
  EncodeChunk encoded;
  std::uint8_t* message;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t chunk) const {
    const DeviceChunk& from = encoded.chunks[chunk];
    std::uint8_t* header = message + from.offset;
    copy_by_warp(warp, encoded.room + static_cast<std::uint64_t>(chunk) * encoded.room_bytes, from.length,
                 header + kChunkHeaderBytes);
    warp.each([&](unsigned lane) {
      if (lane != 0) return;
      put4(header, static_cast<std::uint32_t>(from.mode) | static_cast<std::uint32_t>(chunk) << 8);
      put4(header + 4, from.length);
      put4(header + 8, from.words_crc);
    });
    warp.sync();
    const auto& crc = encoded.part.tables->crc;
    const std::uint32_t of_header = crc32c(warp, crc, header, 12, encoded.part.header_crc);
    const std::uint32_t of_chunk = crc32c(warp, crc, header + kChunkHeaderBytes, from.length, of_header);
    warp.each([&](unsigned lane) {
      if (lane == 0) put4(header + 12, of_chunk);
    });
  }
};

}  // namespace moesaic::codec
