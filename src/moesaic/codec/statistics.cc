#include "moesaic/codec/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "moesaic/codec/order.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

constexpr std::size_t kValues = 2048, kMagnitudes = 8, kSigns = 3, kPrevious = kMagnitudes * kSigns,
                      kExponents = 256;

std::size_t exponent_of(std::uint16_t word) { return word >> 7 & 255; }

std::size_t class_of_previous(std::uint16_t difference) {
  const int d = static_cast<std::int16_t>(difference);
  const auto bits = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(std::abs(d))));
  const std::size_t sign = d < 0 ? 0 : d == 0 ? 1 : 2;
  return std::min(bits, kMagnitudes - 1) * kSigns + sign;
}

double share(std::int64_t part, std::int64_t all) {
  return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
}

// Bits that all the counted values together take, each coded by its share of its context.
double bits_of(std::span<const std::uint64_t> counts) {
  double sum = 0, bits = 0;
  for (const std::uint64_t count : counts) sum += static_cast<double>(count);
  for (const std::uint64_t count : counts) {
    if (count > 0) bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / sum);
  }
  return bits;
}

}  // namespace

ChangeStatistics::ChangeStatistics() : counts_(kExponents * kPrevious) {}

void ChangeStatistics::add(const UnitStep& unit) {
  const std::size_t n = unit.current.size();
  require(unit.reference.size() == n && (unit.before.empty() || unit.before.size() == n),
          "codec statistics: got {}, {} and {} words of one unit, expected as many at each step",
          unit.before.size(), unit.reference.size(), n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t held = unit.reference[i], word = unit.current[i];
    words_changed_ += word != held;
    exponents_changed_ += exponent_of(word) != exponent_of(held);
    const std::uint16_t previous =
        unit.before.empty() ? std::uint16_t{0} : difference_of(held, unit.before[i]);
    Counts& counts = counts_[exponent_of(held) * kPrevious + class_of_previous(previous)];
    if (counts.empty()) counts.resize(kValues);
    ++counts[std::min<std::size_t>(zigzag(difference_of(word, held)), kValues - 1)];
  }
  words_ += static_cast<std::int64_t>(n);
}

double ChangeStatistics::words_changed() const { return share(words_changed_, words_); }
double ChangeStatistics::exponents_changed() const { return share(exponents_changed_, words_); }

double ChangeStatistics::entropy_given_exponent() const {
  double bits = 0;
  for (std::size_t exponent = 0; exponent < kExponents; ++exponent) {
    Counts sum(kValues);
    for (std::size_t previous = 0; previous < kPrevious; ++previous) {
      const Counts& counts = counts_[exponent * kPrevious + previous];
      for (std::size_t value = 0; value < counts.size(); ++value) sum[value] += counts[value];
    }
    bits += bits_of(sum);
  }
  return words_ == 0 ? 0.0 : bits / static_cast<double>(words_);
}

double ChangeStatistics::entropy_given_previous() const {
  double bits = 0;
  for (const Counts& counts : counts_) bits += bits_of(counts);
  return words_ == 0 ? 0.0 : bits / static_cast<double>(words_);
}

}  // namespace moesaic::codec
