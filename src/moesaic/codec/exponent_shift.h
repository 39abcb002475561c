// exponent_shift.h: exponents of bf16 words told against what their row and column predict, and back.
//
// Local. Scales are in quarters of an octave. Of a word in column j, the predicted exponent is
// p = clamp((row + column[j] + 2) >> 2, 1, 255), and its exponent e from 1 to 255 becomes
// 1 + (e - p + 127) mod 255: 128 where the prediction holds. Exponent 0 (zeros) stays, sign and mantissa
// stay, so this is a bijection for each p, and every pattern of bits comes back. `to` may be `from`.
// namespace reference: the same, as the formula reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moesaic::codec {

// `column` has a scale for each word.
void shift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                     std::uint16_t* to);
void unshift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                       std::uint16_t* to);

namespace reference {

void shift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                     std::uint16_t* to);
void unshift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                       std::uint16_t* to);

}  // namespace reference

constexpr int predicted_exponent(int row, int column) { return std::clamp((row + column + 2) >> 2, 1, 255); }

}  // namespace moesaic::codec
