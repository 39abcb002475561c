#include "moesaic/codec/bucket_fit.h"
#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/entropy.h"
#include "moesaic/codec/sample.h"

namespace moesaic::codec {

EntropyTables EntropyTables::measure(std::span<const std::uint16_t> words) {
  std::array<std::uint32_t, 256> seen{};
  std::uint32_t total = 0;
  for_each_sampled_run(words.size(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) ++seen[words[i] >> 7 & 255];
    total += static_cast<std::uint32_t>(end - begin);
  });
  // The window that holds most; of equal ones the last, which has room below what was seen.
  EntropyTables tables;
  std::uint32_t most = 0;
  for (int first = 1; first <= kMaxFirstExponent; ++first) {
    const auto inside = std::accumulate(seen.begin() + first, seen.begin() + first + kWindow, 0u);
    if (inside < most) continue;
    most = inside;
    tables.first_exponent_ = first;
  }
  std::array<std::uint32_t, kNumSymbols> counts{};
  for (int e = 0; e < 256; ++e) counts[tables.symbol_of(static_cast<std::uint16_t>(e << 7))] += seen[e];

  // Shares of 65536, each at least 1. What rounding down leaves goes to the most frequent.
  std::uint32_t taken = 0;
  for (int s = 0; s < kNumSymbols; ++s) {
    const std::uint64_t free = 65536 - kNumSymbols;
    const std::uint64_t share = total == 0 ? 0 : counts[s] * free / total;
    tables.frequency_[s] = static_cast<std::uint16_t>(1 + share);
    taken += tables.frequency_[s];
  }
  const auto frequent = std::max_element(tables.frequency_.begin(), tables.frequency_.end());
  *frequent = static_cast<std::uint16_t>(*frequent + (65536 - taken));

  double bits = 0;
  for (int s = 0; s < kNumSymbols; ++s) {
    const double each = 8 + 16 - log2_of(tables.frequency_[s]) + (s == kEscape ? 8 : 0);
    bits += counts[s] * each;
  }
  tables.bits_per_word_ = total == 0 ? 0 : bits / total;
  return tables;
}

// first exponent | frequency of each symbol but the last, which has the rest
void EntropyTables::append_to(std::vector<std::uint8_t>& out) const {
  out.push_back(static_cast<std::uint8_t>(first_exponent_));
  for (int s = 0; s + 1 < kNumSymbols; ++s) {
    out.push_back(static_cast<std::uint8_t>(frequency_[s]));
    out.push_back(static_cast<std::uint8_t>(frequency_[s] >> 8));
  }
}

EntropyTables EntropyTables::read(std::span<const std::uint8_t> bytes) {
  check_bytes(bytes.size() == kBytes, "entropy tables: got {} bytes, expected {}", bytes.size(), kBytes);
  check_bytes(bytes[0] >= 1 && bytes[0] <= kMaxFirstExponent,
              "entropy tables: got first exponent {}, expected 1 to {}", bytes[0], kMaxFirstExponent);
  EntropyTables tables;
  tables.first_exponent_ = bytes[0];
  std::uint32_t taken = 0;
  for (int s = 0; s + 1 < kNumSymbols; ++s) {
    std::memcpy(&tables.frequency_[s], bytes.data() + 1 + 2 * s, sizeof(std::uint16_t));
    check_bytes(tables.frequency_[s] >= 1, "entropy tables: got a frequency of 0, expected 1 or more");
    taken += tables.frequency_[s];
  }
  check_bytes(taken < 65536, "entropy tables: got frequencies that sum to {}, expected less than 65536",
              taken);
  tables.frequency_[kEscape] = static_cast<std::uint16_t>(65536 - taken);
  return tables;
}

}  // namespace moesaic::codec
