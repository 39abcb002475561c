// calibration.h: what moving and coding bytes costs a job where it runs.
//
// Local; plain data. Measured by calibrate() (measure.h), kept as JSON, equal on all ranks of a job, so that
// decisions made from it are equal, too. Times are of wall clocks, in seconds.
//
// JSON: {"format": "moesaic calibration", "version": 2, "machine", "cores", "node_of_rank",
// "between_measured", "inside": {"seconds_per_message", "seconds_per_byte"}, "between": {…}, "copy":
// {"alone_bytes_per_s", "together_bytes_per_s"}, "codec": {"entropy": {"encode": {…}, "decode": {…},
// "bits_per_word"}, …}, "gradients": {as one of them}}, with every method but raw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/codec/method.h"

namespace moesaic {

// Messages that a rank sends at once to others, and the bytes that come with them.
struct Link {
  double seconds_per_message = 0;  // α
  double seconds_per_byte = 0;     // β

  double seconds(double messages, double bytes) const {
    return seconds_per_message * messages + seconds_per_byte * bytes;
  }
};

// Bytes of bf16 words a second, on one thread of one rank.
struct Rate {
  double alone_bytes_per_s = 0;     // while the other ranks wait
  double together_bytes_per_s = 0;  // all ranks at once, which share cores and memory; the slowest rank
};

struct CodecRates {
  Rate encode;  // with checksums, and committing to the sender's reference
  Rate decode;  // with checks, and committing to the receiver's
  // Of the weights it was measured with, which change as under Adam at the peak of the learning rate.
  double bits_per_word = 16;
};

struct Calibration {
  std::string machine;  // for people: what the processor calls itself
  int cores = 1;
  std::vector<int> node_of_rank;
  // False where all ranks are on one node: then `between` is a copy of `inside`.
  bool between_measured = false;
  Link inside;  // bytes: those that one rank receives from its node, all ranks of all nodes receiving at once
  Link
      between;  // bytes: those that a node's card sends (or receives), all ranks of all nodes sending at once
  Rate copy;    // memcpy
  std::array<CodecRates, std::size(codec::kMethods)> codec{};  // by Method; raw's entry is not used

  CodecRates gradients;  // of the entropy wire (codec/gradient.h), which keeps nothing

  const CodecRates& rates_of(codec::Method method) const { return codec[static_cast<std::size_t>(method)]; }
  CodecRates& rates_of(codec::Method method) { return codec[static_cast<std::size_t>(method)]; }
};

// InvalidArgument naming the field where a time is negative or not finite, a rate or bits_per_word is not
// above zero, `cores` is below 1 or `node_of_rank` is empty or no topology.
void require_valid(const Calibration& calibration);

std::string to_json(const Calibration& calibration);

// The inverse, doubles bit for bit. CorruptData naming `source` and the field that is missing, unknown, of
// another type or out of range, or the version that is not this one's.
Calibration calibration_from_json(std::string_view text, std::string_view source);

}  // namespace moesaic
