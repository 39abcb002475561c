// coders_device.h: difference.h's and entropy.h's streams by a warp: the same bytes and the same words.
//
// Decoders return false for bytes that no encoder wrote; they stay inside `in`, whatever it holds.
#pragma once

#include <array>
#include <cstdint>

#include "moesaic/codec/device_tables.h"
#include "moesaic/codec/order.h"
#include "moesaic/codec/rans_device.h"
#include "moesaic/core/device_code.h"

namespace moesaic::codec {

// A device reads no arrays of the program's own, but numbers.
constexpr std::uint64_t side_by_side(const std::array<std::uint8_t, kNumLevels>& bytes) {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) all |= std::uint64_t{bytes[i]} << 8 * i;
  return all;
}
inline constexpr std::uint64_t kPredictedBytes = side_by_side(kPredicted);
inline constexpr std::uint64_t kLevelFirstBytes = side_by_side(kLevelFirst);
constexpr int predicted_of(unsigned nibble) {
  return static_cast<int>(kPredictedBytes >> 8 * level_of(nibble) & 255);
}

// nibble_of(), coded_value() and decoded_word() of order.h.
constexpr unsigned device_nibble_of(std::uint16_t difference) {
  const int d = static_cast<std::int16_t>(difference), magnitude = d < 0 ? -d : d;
  unsigned level = 0;
  for (unsigned l = 1; l < kNumLevels; ++l)
    level += magnitude >= static_cast<int>(kLevelFirstBytes >> 8 * l & 255);
  return (d < 0 ? 8u : 0u) | level;
}
constexpr std::uint16_t device_coded_value(std::uint16_t current, std::uint16_t reference, unsigned nibble) {
  const int d = difference_of(current, reference), folded = is_negative(nibble) ? -d : d;
  return zigzag(static_cast<std::uint16_t>(folded - predicted_of(nibble)));
}
constexpr std::uint16_t device_decoded_word(std::uint16_t value, std::uint16_t reference, unsigned nibble) {
  const int d = unzigzag(value) + predicted_of(nibble);
  return in_order(static_cast<std::uint16_t>(in_order(reference) + (is_negative(nibble) ? -d : d)));
}

MOESAIC_DEVICE inline unsigned previous_nibble(const DeviceTables& tables, const std::uint8_t* previous,
                                               std::uint32_t i) {
  return tables.momentum ? previous[i / 2] >> (i % 2 * 4) & 15 : 0;
}

MOESAIC_DEVICE inline const DeviceTables::Class& class_at(const DeviceTables& tables, std::uint16_t reference,
                                                          unsigned nibble) {
  int step = (reference >> 7 & 255) - tables.first_exponent;
  step = step < 0 ? 0 : step > tables.last_step ? tables.last_step : step;
  return tables.classes[tables.class_of_context[tables.momentum ? step << 3 | level_of(nibble) : step]];
}

MOESAIC_DEVICE inline Slots slots_of(const DeviceTables::Class& code, int bucket) {
  return {code.start[bucket], code.frequency[bucket], code.width_log2[bucket]};
}

// `previous` is read with momentum only. Returns the bytes written to `room`, which has encoded_bound().
template <class Warp>
MOESAIC_DEVICE std::uint32_t encode_difference(const Warp& warp, const DeviceTables& tables,
                                               const std::uint16_t* reference, const std::uint8_t* previous,
                                               const std::uint16_t* current, std::uint32_t words,
                                               std::uint8_t* room) {
  WarpWriter<Warp> writer(warp, room, words);
  for (std::uint32_t groups = (words + kLanes - 1) / kLanes; groups > 0; --groups) {
    const std::uint32_t begin = (groups - 1) * static_cast<std::uint32_t>(kLanes);
    Each<Warp, Step> steps;
    Each<Warp, std::uint16_t> value;
    Each<Warp, bool> escapes;
    warp.each([&](unsigned lane) {
      const std::uint32_t i = begin + lane;
      escapes[lane] = false;
      steps[lane].active = i < words;
      if (i >= words) return;
      const unsigned nibble = previous_nibble(tables, previous, i);
      const auto& code = class_at(tables, reference[i], nibble);
      value[lane] = device_coded_value(current[i], reference[i], nibble);
      int bucket = 0;
      while (bucket < BucketClass::kEscape && value[lane] >= code.base[bucket + 1]) ++bucket;
      escapes[lane] = bucket == BucketClass::kEscape;
      steps[lane].slots = slots_of(code, bucket);
      steps[lane].raw = escapes[lane] ? 0u : static_cast<std::uint32_t>(value[lane] - code.base[bucket]);
    });
    const std::uint32_t lanes = warp.ballot(escapes);
    warp.each([&](unsigned lane) {
      if (escapes[lane]) put2(writer.literals + 2 * count_lanes(lanes & lanes_below(lane)), value[lane]);
    });
    writer.literals += 2 * count_lanes(lanes);
    writer.push(warp, steps);
  }
  return writer.finish(warp);
}

template <class Warp>
MOESAIC_DEVICE bool decode_difference(const Warp& warp, const DeviceTables& tables,
                                      const std::uint16_t* reference, const std::uint8_t* previous,
                                      const std::uint8_t* in, std::uint32_t length, std::uint32_t words,
                                      std::uint16_t* out) {
  WarpReader<Warp> reader;
  if (!reader.open(warp, in, length, words)) return false;
  for (std::uint32_t begin = 0; begin < words; begin += kLanes) {
    Each<Warp, Step> steps;
    Each<Warp, std::uint16_t> base;
    Each<Warp, std::uint8_t> nibble;
    Each<Warp, bool> escapes;
    warp.each([&](unsigned lane) {
      const std::uint32_t i = begin + lane;
      escapes[lane] = false;
      steps[lane].active = i < words;
      if (i >= words) return;
      nibble[lane] = static_cast<std::uint8_t>(previous_nibble(tables, previous, i));
      const auto& code = class_at(tables, reference[i], nibble[lane]);
      int bucket = 0;
      while (bucket < BucketClass::kEscape && (reader.state[lane] & 0xffff) >= code.start[bucket + 1])
        ++bucket;
      escapes[lane] = bucket == BucketClass::kEscape;
      base[lane] = code.base[bucket];
      steps[lane].slots = slots_of(code, bucket);
    });
    const std::uint32_t lanes = warp.ballot(escapes);
    if (!reader.pop(warp, steps) || !reader.take(reader.literals_begin, reader.literals, lanes, 2))
      return false;
    warp.each([&](unsigned lane) {
      const std::uint32_t i = begin + lane;
      if (i >= words) return;
      auto value = static_cast<std::uint16_t>(base[lane] + steps[lane].raw);
      if (escapes[lane]) {
        value =
            static_cast<std::uint16_t>(bytes2(reader.literals + 2 * count_lanes(lanes & lanes_below(lane))));
      }
      out[i] = device_decoded_word(value, reference[i], nibble[lane]);
    });
  }
  return reader.finished(warp);
}

// The bytes of sign and mantissa, then the stream. `room` has entropy_bound() bytes.
template <class Warp>
MOESAIC_DEVICE std::uint32_t encode_entropy(const Warp& warp, const DeviceTables& tables,
                                            const std::uint16_t* words, std::uint32_t n, std::uint8_t* room) {
  WarpWriter<Warp> writer(warp, room + n, n);
  for (std::uint32_t groups = (n + kLanes - 1) / kLanes; groups > 0; --groups) {
    const std::uint32_t begin = (groups - 1) * static_cast<std::uint32_t>(kLanes);
    Each<Warp, Step> steps;
    Each<Warp, bool> escapes;
    warp.each([&](unsigned lane) {
      const std::uint32_t i = begin + lane;
      escapes[lane] = false;
      steps[lane].active = i < n;
      if (i >= n) return;
      room[i] = static_cast<std::uint8_t>((words[i] >> 8 & 0x80) | (words[i] & 0x7f));
      const int exponent = words[i] >> 7 & 255, place = exponent - tables.entropy_first_exponent;
      const int symbol = place >= 0 && place < EntropyTables::kWindow ? place
                         : exponent == 0                              ? EntropyTables::kZeroSymbol
                                                                      : EntropyTables::kEscape;
      escapes[lane] = symbol == EntropyTables::kEscape;
      steps[lane].slots = {tables.entropy_start[symbol], tables.entropy_frequency[symbol], 0};
      steps[lane].raw = 0;
    });
    const std::uint32_t lanes = warp.ballot(escapes);
    warp.each([&](unsigned lane) {
      if (!escapes[lane]) return;
      writer.literals[count_lanes(lanes & lanes_below(lane))] =
          static_cast<std::uint8_t>(words[begin + lane] >> 7);
    });
    writer.literals += count_lanes(lanes);
    writer.push(warp, steps);
  }
  return n + writer.finish(warp);
}

template <class Warp>
MOESAIC_DEVICE bool decode_entropy(const Warp& warp, const DeviceTables& tables, const std::uint8_t* in,
                                   std::uint32_t length, std::uint32_t words, std::uint16_t* out) {
  WarpReader<Warp> reader;
  if (length < words || !reader.open(warp, in + words, length - words, words)) return false;
  for (std::uint32_t begin = 0; begin < words; begin += kLanes) {
    Each<Warp, Step> steps;
    Each<Warp, std::uint32_t> exponent;
    Each<Warp, bool> escapes;
    warp.each([&](unsigned lane) {
      escapes[lane] = false;
      steps[lane].active = begin + lane < words;
      if (!steps[lane].active) return;
      int symbol = 0;
      while (symbol < EntropyTables::kEscape &&
             (reader.state[lane] & 0xffff) >= tables.entropy_start[symbol + 1])
        ++symbol;
      escapes[lane] = symbol == EntropyTables::kEscape;
      exponent[lane] = symbol == EntropyTables::kZeroSymbol
                           ? 0u
                           : tables.entropy_first_exponent + static_cast<std::uint32_t>(symbol);
      steps[lane].slots = {tables.entropy_start[symbol], tables.entropy_frequency[symbol], 0};
    });
    const std::uint32_t lanes = warp.ballot(escapes);
    if (!reader.pop(warp, steps) || !reader.take(reader.literals_begin, reader.literals, lanes, 1))
      return false;
    warp.each([&](unsigned lane) {
      const std::uint32_t i = begin + lane;
      if (i >= words) return;
      if (escapes[lane]) exponent[lane] = reader.literals[count_lanes(lanes & lanes_below(lane))];
      out[i] = static_cast<std::uint16_t>((in[i] & 0x80) << 8 | exponent[lane] << 7 | (in[i] & 0x7f));
    });
  }
  return reader.finished(warp);
}

}  // namespace moesaic::codec
