// entropy.h: bf16 words coded on their own, without a reference: exponents by their frequency, the rest as it
// is.
//
// Local, one thread, lossless for every pattern of bits. Of a word, the sign and the seven bits of mantissa
// go out as one byte (they hold nothing to gain); the exponent is coded with rANS (see rans.h): fourteen
// exponents in a row from first_exponent have a symbol each, exponent 0 (zeros) has one, and any other
// exponent escapes to a side list of bytes. About 10.6 bits a word for weights.
//
// Streams of at most kMaxStreamWords words (difference.h), each coded and decoded on its own: the bytes of
// sign and mantissa, one a word, and behind them the stream of rans.h. Bytes are the same on every CPU.
// Errors: InvalidArgument for sizes that do not match, CorruptData for bytes that no encoder wrote.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace moesaic::codec {

class EntropyTables {
 public:
  static constexpr int kWindow = 14;           // exponents with a symbol of their own
  static constexpr int kZeroSymbol = kWindow;  // exponent 0
  static constexpr int kEscape = kWindow + 1;  // any other
  static constexpr int kNumSymbols = kWindow + 2;
  static constexpr int kMaxFirstExponent = 256 - kWindow;
  static constexpr std::size_t kBytes = 1 + 2 * (kNumSymbols - 1);

  // From about one word in 64 (all when there are few).
  static EntropyTables measure(std::span<const std::uint16_t> words);

  // Exactly kBytes. read() takes exactly what append_to() added; CorruptData on anything invalid.
  void append_to(std::vector<std::uint8_t>& out) const;
  static EntropyTables read(std::span<const std::uint8_t> bytes);

  // What the sample would cost, without the bytes of tables and stream heads. 0 for tables that were read.
  double bits_per_word() const { return bits_per_word_; }

  // For the coders. Every frequency is at least 1; they sum to 65536. start() is the first slot of a symbol.
  int symbol_of(std::uint16_t word) const {
    const int exponent = word >> 7 & 255, place = exponent - first_exponent_;
    return place >= 0 && place < kWindow ? place : exponent == 0 ? kZeroSymbol : kEscape;
  }
  int exponent_of(int symbol) const { return symbol == kZeroSymbol ? 0 : first_exponent_ + symbol; }
  std::uint32_t start(int symbol) const {
    return std::accumulate(frequency_.begin(), frequency_.begin() + symbol, 0u);
  }
  int first_exponent() const { return first_exponent_; }
  const std::array<std::uint16_t, kNumSymbols>& frequency() const { return frequency_; }

 private:
  int first_exponent_ = 1;  // 1 to kMaxFirstExponent
  std::array<std::uint16_t, kNumSymbols> frequency_ = {};
  double bits_per_word_ = 0;
};

// The most bytes a stream of that many words takes, and the room encode_entropy() asks for.
std::size_t entropy_bound(std::size_t words);

// Returns the bytes written to the front of `out`. An empty stream takes none.
std::size_t encode_entropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                           std::span<std::uint8_t> out);

// Fills `out`, as many words as were coded. After CorruptData what is in `out` means nothing.
void decode_entropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                    std::span<std::uint16_t> out);

}  // namespace moesaic::codec
