// message_device.h: message.h's chunks on a device, a warp for each: the same bytes, checked the same way.
//
// Modes raw, same, sparse, residual, momentum and entropy; the host writes and reads the header and tables.
// The tasks are in message_encode_device.h and message_decode_device.h.
#pragma once

#include <cstdint>

#include "moesaic/codec/chunk_mode.h"
#include "moesaic/codec/coders_device.h"
#include "moesaic/core/crc32c_device.h"
#include "moesaic/core/device_code.h"

namespace moesaic::codec {

// What is wrong with a chunk.
enum class ChunkFault : std::uint32_t { kNone, kCut, kNumber, kLength, kChecksum, kMode, kPayload, kWords };

struct DeviceChunk {
  std::uint64_t offset;  // of its header in the message
  std::uint32_t length;  // of its payload
  std::uint32_t words_crc;
  ChunkMode mode;
  ChunkFault fault;
};

// What both ends know of a message.
struct DevicePart {
  const DeviceTables* tables;
  const std::uint16_t* reference;   // null for a key
  const std::uint8_t* differences;  // null without momentum
  std::uint64_t words;
  std::uint32_t chunk_words;
  std::uint32_t header_crc;
  std::uint64_t prefix_bytes;  // header and tables

  MOESAIC_DEVICE std::uint64_t begin(std::int64_t chunk) const {
    return static_cast<std::uint64_t>(chunk) * chunk_words;
  }
  MOESAIC_DEVICE std::uint32_t words_of(std::int64_t chunk) const {
    const std::uint64_t left = words - begin(chunk);
    return left < chunk_words ? static_cast<std::uint32_t>(left) : chunk_words;
  }
  MOESAIC_DEVICE const std::uint8_t* differences_of(std::int64_t chunk) const {
    return differences == nullptr ? nullptr : differences + begin(chunk) / 2;
  }
};

template <class Warp, class T>
MOESAIC_DEVICE void copy_by_warp(const Warp& warp, const T* from, std::uint64_t n, T* to) {
  warp.each([&](unsigned lane) {
    for (std::uint64_t i = lane; i < n; i += kWarpLanes) to[i] = from[i];
  });
}

template <class Warp>
MOESAIC_DEVICE std::uint32_t words_crc_of(const Warp& warp, const DeviceTables& tables,
                                          const std::uint16_t* words, std::uint32_t n) {
  return crc32c(warp, tables.crc, reinterpret_cast<const std::uint8_t*>(words), std::uint64_t{n} * 2);
}

// update_previous() of difference.h; task: a byte of it.
struct UpdatePrevious {
  const std::uint16_t* reference;
  const std::uint16_t* current;
  std::uint64_t words;
  std::uint8_t* previous;

  MOESAIC_DEVICE void operator()(std::int64_t byte) const {
    unsigned both = 0;
    for (unsigned odd = 0; odd < 2; ++odd) {
      const std::uint64_t i = 2 * static_cast<std::uint64_t>(byte) + odd;
      if (i < words) both |= device_nibble_of(difference_of(current[i], reference[i])) << 4 * odd;
    }
    previous[byte] = static_cast<std::uint8_t>(both);
  }
};

}  // namespace moesaic::codec
