// rans_device.h: a stream of rans.h by a warp: lane i of the warp is lane i of the stream.
//
// The encoder goes through lanes from the first to the last and the decoder the other way; all at once, a
// lane's place on a stack follows from how many lanes before it use the stack, too.
#pragma once

#include <cstdint>

#include "moesaic/codec/rans.h"
#include "moesaic/core/device_code.h"

namespace moesaic::codec {

static_assert(kLanes == kWarpLanes);
inline constexpr std::uint32_t kFirstState = 0x10000;
inline constexpr std::uint32_t kStreamFrame =
    sizeof(std::uint32_t) + 4 * kLanes;  // without halves and literals

// Messages may lie at any byte.
MOESAIC_DEVICE inline std::uint32_t bytes2(const std::uint8_t* at) { return at[0] | at[1] << 8; }
MOESAIC_DEVICE inline std::uint32_t bytes4(const std::uint8_t* at) {
  return bytes2(at) | bytes2(at + 2) << 16;
}
MOESAIC_DEVICE inline void put2(std::uint8_t* at, std::uint32_t value) {
  at[0] = static_cast<std::uint8_t>(value);
  at[1] = static_cast<std::uint8_t>(value >> 8);
}
MOESAIC_DEVICE inline void put4(std::uint8_t* at, std::uint32_t value) {
  put2(at, value);
  put2(at + 2, value >> 16);
}

// What a lane codes in one step; `active` is false past the end of the words.
struct Step {
  Slots slots;
  std::uint32_t raw;
  bool active;
};

template <class Warp>
struct WarpReader {
  Each<Warp, std::uint32_t> state;
  const std::uint8_t* halves_begin;
  const std::uint8_t* halves;  // tops of both stacks
  const std::uint8_t* literals_begin;
  const std::uint8_t* literals;

  // False when `length` bytes cannot be a stream of so many words.
  MOESAIC_DEVICE bool open(const Warp& warp, const std::uint8_t* in, std::uint64_t length,
                           std::uint64_t words) {
    if (length < kStreamFrame) return false;
    const std::uint64_t num_halves = bytes4(in);
    if (num_halves > words || 2 * num_halves > length - kStreamFrame) return false;
    halves_begin = in + sizeof(std::uint32_t);
    halves = literals_begin = halves_begin + 2 * num_halves;
    literals = in + length - 4 * kLanes;
    const std::uint8_t* states = literals;
    warp.each([&](unsigned lane) {
      state[lane] = bytes2(states + 2 * lane) | bytes2(states + 2 * (kLanes + lane)) << 16;
    });
    return true;
  }

  // Takes `bytes` off a stack for each of `lanes`; false when it holds fewer.
  MOESAIC_DEVICE static bool take(const std::uint8_t* begin, const std::uint8_t*& top, std::uint32_t lanes,
                                  std::uint32_t bytes) {
    const std::uint32_t taken = bytes * count_lanes(lanes);
    if (top - begin < static_cast<std::int64_t>(taken)) return false;
    top -= taken;
    return true;
  }

  // `slots` hold each lane's low half; sets `raw`.
  MOESAIC_DEVICE bool pop(const Warp& warp, Each<Warp, Step>& steps) {
    Each<Warp, bool> empty;
    warp.each([&](unsigned lane) {
      Step& step = steps[lane];
      empty[lane] = false;
      if (!step.active) return;
      const std::uint32_t offset = (state[lane] & 0xffff) - step.slots.start;
      state[lane] = step.slots.frequency * (state[lane] >> 16) + (offset >> step.slots.width_log2);
      step.raw = offset & ((1u << step.slots.width_log2) - 1);
      empty[lane] = state[lane] >> 16 == 0;
    });
    const std::uint32_t lanes = warp.ballot(empty);
    if (!take(halves_begin, halves, lanes, 2)) return false;
    warp.each([&](unsigned lane) {
      if (!empty[lane]) return;
      state[lane] = state[lane] << 16 | bytes2(halves + 2 * count_lanes(lanes & lanes_below(lane)));
    });
    return true;
  }

  // Whether everything was used up and the lanes are where an encoder starts.
  MOESAIC_DEVICE bool finished(const Warp& warp) const {
    Each<Warp, bool> other;
    warp.each([&](unsigned lane) { other[lane] = state[lane] != kFirstState; });
    return warp.ballot(other) == 0 && halves == halves_begin && literals == literals_begin;
  }
};

template <class Warp>
struct WarpWriter {
  Each<Warp, std::uint32_t> state;
  std::uint8_t* out;
  std::uint8_t* halves;  // tops of both stacks
  std::uint8_t* first_literal;
  std::uint8_t* literals;

  // `room`: StreamWriter::bound() bytes, of which those up to the literals' stack are in the final place.
  MOESAIC_DEVICE WarpWriter(const Warp& warp, std::uint8_t* room, std::uint64_t words)
      : out(room),
        halves(room + sizeof(std::uint32_t)),
        first_literal(halves + 2 * words),
        literals(first_literal) {
    warp.each([&](unsigned lane) { state[lane] = kFirstState; });
  }

  MOESAIC_DEVICE void push(const Warp& warp, const Each<Warp, Step>& steps) {
    Each<Warp, bool> full;
    warp.each([&](unsigned lane) {
      full[lane] = steps[lane].active && state[lane] >> 16 >= steps[lane].slots.frequency;
    });
    const std::uint32_t lanes = warp.ballot(full);
    warp.each([&](unsigned lane) {
      const Step& step = steps[lane];
      if (!step.active) return;
      if (full[lane]) {
        put2(halves + 2 * count_lanes(lanes & lanes_below(lane)), state[lane]);
        state[lane] >>= 16;
      }
      const std::uint32_t whole = state[lane] / step.slots.frequency,
                          rest = state[lane] % step.slots.frequency;
      state[lane] = whole << 16 | (step.slots.start + (rest << step.slots.width_log2) + step.raw);
    });
    halves += 2 * count_lanes(lanes);
  }

  // Lays the parts together at the front of the room; returns how many bytes they take.
  MOESAIC_DEVICE std::uint32_t finish(const Warp& warp) {
    const auto num_literals = static_cast<std::uint32_t>(literals - first_literal);
    // To the front, so that what is overwritten has been read, 32 bytes at a time.
    for (std::uint32_t begin = 0; begin < num_literals; begin += kWarpLanes) {
      Each<Warp, std::uint8_t> byte;
      warp.sync();
      warp.each([&](unsigned lane) {
        if (begin + lane < num_literals) byte[lane] = first_literal[begin + lane];
      });
      warp.sync();
      warp.each([&](unsigned lane) {
        if (begin + lane < num_literals) halves[begin + lane] = byte[lane];
      });
    }
    warp.sync();
    std::uint8_t* states = halves + num_literals;
    warp.each([&](unsigned lane) {
      if (lane == 0) put4(out, static_cast<std::uint32_t>(halves - out - 4) / 2);
      put2(states + 2 * lane, state[lane]);
      put2(states + 2 * (kLanes + lane), state[lane] >> 16);
    });
    warp.sync();
    return static_cast<std::uint32_t>(states + 4 * kLanes - out);
  }
};

}  // namespace moesaic::codec
