#include "moesaic/codec/exponent_shift.h"

namespace moesaic::codec::reference {
namespace {

constexpr std::uint16_t with_exponent(std::uint16_t word, int exponent) {
  return static_cast<std::uint16_t>((word & 0x807f) | exponent << 7);
}

}  // namespace

void shift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                     std::uint16_t* to) {
  for (std::size_t j = 0; j < from.size(); ++j) {
    const int e = from[j] >> 7 & 255, p = predicted_exponent(row, column[j]);
    to[j] = e == 0 ? from[j] : with_exponent(from[j], 1 + (e - p + 127 + 255) % 255);
  }
}

void unshift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                       std::uint16_t* to) {
  for (std::size_t j = 0; j < from.size(); ++j) {
    const int t = from[j] >> 7 & 255, p = predicted_exponent(row, column[j]);
    to[j] = t == 0 ? from[j] : with_exponent(from[j], 1 + (t - 1 + p - 1 + 255 - 127) % 255);
  }
}

}  // namespace moesaic::codec::reference
