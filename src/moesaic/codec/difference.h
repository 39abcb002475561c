// difference.h: bf16 words coded as their difference from a reference that both ends hold.
//
// Local, one thread, lossless for every pattern of bits. A word is its bf16 pattern. A message is cut into
// streams of at most kMaxStreamWords words, each coded and decoded on its own with the message's tables.
//
// Words are put in order by g(u) = u for plus, u ^ 0x7fff for minus, and differ by d = g(current) -
// g(reference) mod 2^16. kReference codes d. kMomentum also holds `previous`, what d was at the same weight
// one step before, as its sign and one of eight levels of magnitude (order.h): it codes sign(previous) * d
// less what the level predicts (0.85 of its middle), with the level as context. `previous` is packed two
// words to a byte, the even word in the low four bits: bit 3 is the sign, bits 0-2 the level. All zeros:
// nothing is known. The reference's exponent is a context in both.
//
// Bytes of a stream: see rans.h. Bytes are the same on every CPU. Cost: one pass over the words.
// Errors: InvalidArgument for sizes that do not match, CorruptData for bytes that no encoder wrote.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/bucket_code.h"
#include "moesaic/codec/order.h"

namespace moesaic::codec {

inline constexpr std::size_t kMaxStreamWords = 65536;

enum class Predictor : std::uint8_t { kReference /* "residual" */, kMomentum /* "momentum" */ };

// Bytes of `previous` for that many words. An odd word's partner, past the end, is 0.
constexpr std::size_t previous_bytes(std::size_t words) { return (words + 1) / 2; }

// What both ends need to code the streams of a message: which class a context belongs to, and each class's
// code. Built once per message, from about one word in 64 (all when there are few).
class DifferenceTables {
 public:
  static constexpr int kNumContexts = 64;
  static constexpr std::size_t kMaxBytes = 2 + kNumContexts / 2 + BucketCode::kMaxBytes;

  // The three spans cover the same words (any number of them). `previous` is empty for kReference.
  static DifferenceTables measure(Predictor predictor, std::span<const std::uint16_t> reference,
                                  std::span<const std::uint8_t> previous,
                                  std::span<const std::uint16_t> current);

  // The same with the predictor that promises fewer bits for these words.
  static DifferenceTables measure_best(std::span<const std::uint16_t> reference,
                                       std::span<const std::uint8_t> previous,
                                       std::span<const std::uint16_t> current);

  // At most kMaxBytes. read() takes exactly what append_to() added.
  void append_to(std::vector<std::uint8_t>& out) const;
  static DifferenceTables read(std::span<const std::uint8_t> bytes);

  // What the sample would cost with these tables, without the bytes of tables and stream heads; for choosing
  // a method. 0 for tables that were read.
  double bits_per_word() const { return bits_per_word_; }

  // Bits a word that a sample of other words would cost with these tables, and with the best frequencies that
  // these tables' buckets could have. A small part of what measure() takes.
  struct Price {
    double bits_per_word = 0;
    double attainable = 0;
  };
  Price price(std::span<const std::uint16_t> reference, std::span<const std::uint8_t> previous,
              std::span<const std::uint16_t> current) const;

  Predictor predictor() const { return predictor_; }

  // For the coders. The context of a word is (exponent step << 3 | level) with kMomentum, the exponent step
  // with kReference; steps count from first_exponent(), clamped to num_exponents() values. `nibble` is the
  // word's previous difference, 0 with kReference.
  int first_exponent() const { return first_exponent_; }
  int num_exponents() const { return predictor_ == Predictor::kMomentum ? 8 : 16; }
  int num_contexts() const { return predictor_ == Predictor::kMomentum ? kNumContexts : 16; }
  std::size_t context_of(std::uint16_t reference, unsigned nibble) const {
    const int step = std::clamp((reference >> 7 & 255) - first_exponent_, 0, num_exponents() - 1);
    return static_cast<std::size_t>(
        predictor_ == Predictor::kMomentum ? step << 3 | static_cast<int>(level_of(nibble)) : step);
  }
  const std::array<std::uint8_t, kNumContexts>& class_of_context() const { return class_of_context_; }
  const BucketCode& code() const { return code_; }

 private:
  struct Measured;

  Predictor predictor_ = Predictor::kReference;
  int first_exponent_ = 0;
  std::array<std::uint8_t, kNumContexts> class_of_context_ = {};
  BucketCode code_;
  double bits_per_word_ = 0;
};

// The most bytes a stream of that many words takes, and the room encode_difference() asks for.
std::size_t encoded_bound(std::size_t words);

// Returns the bytes written to the front of `out`. An empty stream takes none.
std::size_t encode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                              std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                              std::span<std::uint8_t> out);

// Fills `out`, as many words as were coded. After CorruptData what is in `out` means nothing.
void decode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                       std::span<const std::uint8_t> previous, std::span<const std::uint8_t> in,
                       std::span<std::uint16_t> out);

// previous <- g(current) - g(reference), as four bits each (order.h).
void update_previous(std::span<const std::uint16_t> reference, std::span<const std::uint16_t> current,
                     std::span<std::uint8_t> previous);

}  // namespace moesaic::codec
