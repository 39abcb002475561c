// rans.h: range coding (asymmetric numeral systems, Duda 2013) in 32 lanes: the format, and one step of one
// lane.
//
// Local. Word i of a stream is coded by lane i mod 32. A lane's state is a 32-bit number of at least 2^16
// between steps, kept as two halves so that a vector of 16-bit lanes holds it. Probabilities are shares of
// 65536 slots. A symbol is a range of slots, `frequency` for each of 2^width_log2 equally likely raw values:
// slot = start + (rest << width_log2) + raw, with rest < frequency.
//
// The encoder goes through groups of 32 words from the last to the first, and in a group through lanes from
// the first to the last; the decoder the other way. So the two side lists are stacks: a renormalised half of
// a state is pushed on one, a value without a symbol (a literal) on the other.
//
// A stream: u32 number of pushed halves | the halves, 16 bits each | literals | states, 32 low then 32 high
// halves. Little-endian. The states come last: a decoder that reads a vector at the top of either stack stays
// in bounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace moesaic::codec {

inline constexpr std::size_t kLanes = 32;

struct Lanes {
  std::array<std::uint16_t, kLanes> low{};
  std::array<std::uint16_t, kLanes> high;
  Lanes() { high.fill(1); }
  bool operator==(const Lanes&) const = default;
};

struct Slots {
  std::uint32_t start;
  std::uint32_t frequency;
  std::uint32_t width_log2;
};

// Both stacks of a stream being written, at their tops. Vectors may write kSlack bytes past a top.
struct StreamWriter {
  static constexpr std::size_t kSlack = 64;

  Lanes lanes;
  std::uint8_t* halves;
  std::uint8_t* literals;

  // Room for a stream of `words` words with literals of `literal_bytes` each.
  static constexpr std::size_t bound(std::size_t words, std::size_t literal_bytes) {
    return sizeof(std::uint32_t) + (2 + literal_bytes) * words + 2 * kSlack + sizeof(Lanes);
  }

  // `out` has bound() bytes.
  StreamWriter(std::span<std::uint8_t> out, std::size_t words);

  // Lays the parts together at the front of `out`; returns how many bytes they take.
  std::size_t finish();

 private:
  std::uint8_t* out_;
  std::uint8_t* first_literal_;
};

// Both stacks of a stream being read, at their tops. Vectors may read kSlack bytes past a top.
struct StreamReader {
  static constexpr std::size_t kSlack = sizeof(Lanes);

  Lanes lanes;
  const std::uint8_t* halves;
  const std::uint8_t* literals;
  const std::uint8_t* halves_begin;
  const std::uint8_t* literals_begin;

  // CorruptData when `in` cannot be a stream of that many words.
  StreamReader(std::span<const std::uint8_t> in, std::size_t words);

  // Called before `bytes` are taken off a stack. CorruptData when it holds fewer.
  void check_halves(std::size_t bytes) const;
  void check_literals(std::size_t bytes) const;

  // CorruptData unless everything was used up and the lanes are where an encoder starts.
  void finish() const;
};

// One step of one lane: what vectors do for 16 or 32 lanes at once.
inline void push(StreamWriter& writer, std::size_t lane, const Slots& slots, std::uint32_t raw) {
  std::uint32_t state = std::uint32_t{writer.lanes.high[lane]} << 16 | writer.lanes.low[lane];
  if (state >> 16 >= slots.frequency) {
    std::memcpy(writer.halves, &writer.lanes.low[lane], 2);
    writer.halves += 2;
    state >>= 16;
  }
  writer.lanes.high[lane] = static_cast<std::uint16_t>(state / slots.frequency);
  writer.lanes.low[lane] =
      static_cast<std::uint16_t>(slots.start + (state % slots.frequency << slots.width_log2) + raw);
}

// `slots` are those that hold the lane's low half. Returns the raw value.
inline std::uint32_t pop(StreamReader& reader, std::size_t lane, const Slots& slots) {
  const std::uint32_t offset = reader.lanes.low[lane] - slots.start;
  std::uint32_t state = slots.frequency * reader.lanes.high[lane] + (offset >> slots.width_log2);
  if (state >> 16 == 0) {
    reader.check_halves(2);
    reader.halves -= 2;
    std::uint16_t half;
    std::memcpy(&half, reader.halves, 2);
    state = state << 16 | half;
  }
  reader.lanes.high[lane] = static_cast<std::uint16_t>(state >> 16);
  reader.lanes.low[lane] = static_cast<std::uint16_t>(state);
  return offset & ((1u << slots.width_log2) - 1);
}

}  // namespace moesaic::codec
