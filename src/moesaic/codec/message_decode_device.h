// message_decode_device.h: a message's chunks back into words: FindChunks once, DecodeChunk for each.
#pragma once

#include <cstdint>

#include "moesaic/codec/message_device.h"

namespace moesaic::codec {

// One task: finds the chunks of a message. Those that cannot be there are kCut.
struct FindChunks {
  DevicePart part;
  const std::uint8_t* message;
  std::uint64_t message_bytes;
  std::int64_t num_chunks;
  DeviceChunk* chunks;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t) const {
    warp.each([&](unsigned lane) {
      if (lane != 0) return;
      std::uint64_t at = part.prefix_bytes;
      bool lost = false;
      for (std::int64_t i = 0; i < num_chunks; ++i) {
        DeviceChunk& chunk = chunks[i];
        chunk = {at, 0, 0, ChunkMode::kRaw, ChunkFault::kCut};
        lost = lost || at > message_bytes || message_bytes - at < kChunkHeaderBytes;
        if (lost) continue;
        const std::uint8_t* header = message + at;
        chunk.mode = static_cast<ChunkMode>(header[0]);
        chunk.length = bytes4(header + 4);
        chunk.words_crc = bytes4(header + 8);
        at += kChunkHeaderBytes + chunk.length;
        lost = at > message_bytes || (i + 1 == num_chunks && at != message_bytes);
        if (!lost) chunk.fault = ChunkFault::kNone;
      }
    });
  }
};

// Task: a chunk, with every check that message.h promises. Sets the chunk's fault. `words` hold rubbish where
// there is one.
struct DecodeChunk {
  DevicePart part;
  const std::uint8_t* message;
  std::uint32_t modes;  // bit m: mode m may be in this message
  std::uint16_t* words;
  DeviceChunk* chunks;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t chunk) const {
    const ChunkFault fault = decode(warp, chunk, chunks[chunk]);
    warp.sync();
    warp.each([&](unsigned lane) {
      if (lane == 0) chunks[chunk].fault = fault;
    });
  }

 private:
  template <class Warp>
  MOESAIC_DEVICE ChunkFault decode(const Warp& warp, std::int64_t chunk, const DeviceChunk from) const {
    if (from.fault != ChunkFault::kNone) return from.fault;
    const DeviceTables& tables = *part.tables;
    const std::uint8_t* header = message + from.offset;
    const std::uint32_t n = part.words_of(chunk);
    if (from.length > 2 * n) return ChunkFault::kLength;
    const std::uint32_t of_header = crc32c(warp, tables.crc, header, 12, part.header_crc);
    const std::uint32_t crc = crc32c(warp, tables.crc, header + kChunkHeaderBytes, from.length, of_header);
    if (crc != bytes4(header + 12)) return ChunkFault::kChecksum;
    if (bytes4(header) >> 8 != (static_cast<std::uint32_t>(chunk) & 0xffffff)) return ChunkFault::kNumber;
    if (static_cast<std::uint8_t>(from.mode) >= kNumChunkModes) return ChunkFault::kMode;
    if ((modes >> static_cast<std::uint8_t>(from.mode) & 1) == 0) return ChunkFault::kMode;
    std::uint16_t* to = words + part.begin(chunk);
    if (!decode_payload(warp, chunk, from, header + kChunkHeaderBytes, n, to)) return ChunkFault::kPayload;
    warp.sync();
    return words_crc_of(warp, tables, to, n) == from.words_crc ? ChunkFault::kNone : ChunkFault::kWords;
  }

  template <class Warp>
  MOESAIC_DEVICE bool decode_payload(const Warp& warp, std::int64_t chunk, const DeviceChunk& from,
                                     const std::uint8_t* payload, std::uint32_t n, std::uint16_t* to) const {
    const DeviceTables& tables = *part.tables;
    const std::uint16_t* held = part.reference + part.begin(chunk);
    switch (from.mode) {
      case ChunkMode::kRaw:
        if (from.length != 2 * n) return false;
        warp.each([&](unsigned lane) {
          for (std::uint32_t i = lane; i < n; i += kWarpLanes) {
            to[i] = static_cast<std::uint16_t>(bytes2(payload + 2 * i));
          }
        });
        return true;
      case ChunkMode::kSame:
        if (from.length != 0) return false;
        copy_by_warp(warp, held, n, to);
        return true;
      case ChunkMode::kSparse:
        return decode_sparse(warp, held, payload, from.length, n, to);
      case ChunkMode::kEntropy:
        return tables.has_entropy && decode_entropy(warp, tables, payload, from.length, n, to);
      case ChunkMode::kResidual:
      case ChunkMode::kMomentum:
        return tables.has_difference && tables.momentum == (from.mode == ChunkMode::kMomentum) &&
               decode_difference(warp, tables, held, part.differences_of(chunk), payload, from.length, n, to);
      default:
        return false;
    }
  }

  template <class Warp>
  MOESAIC_DEVICE bool decode_sparse(const Warp& warp, const std::uint16_t* held, const std::uint8_t* payload,
                                    std::uint32_t length, std::uint32_t n, std::uint16_t* to) const {
    const std::uint32_t changed = length / 4;
    if (length % 4 != 0) return false;
    copy_by_warp(warp, held, n, to);
    warp.sync();
    for (std::uint32_t begin = 0; begin < changed; begin += kWarpLanes) {
      Each<Warp, bool> wrong;  // indices ascend and stay below n
      warp.each([&](unsigned lane) {
        const std::uint32_t k = begin + lane;
        wrong[lane] = false;
        if (k >= changed) return;
        const std::uint32_t index = bytes2(payload + 2 * k);
        wrong[lane] = index >= n || (k > 0 && index <= bytes2(payload + 2 * (k - 1)));
        if (!wrong[lane]) to[index] = static_cast<std::uint16_t>(bytes2(payload + 2 * (changed + k)));
      });
      if (warp.ballot(wrong) != 0) return false;
    }
    return true;
  }
};

}  // namespace moesaic::codec
