// planes.h: a bf16 word taken apart into its exponent and the rest, and where two rows of words differ.
//
// Local. A word is sign (bit 15), exponent (14..7), mantissa (6..0). Its plane byte is the sign, then the
// mantissa. All are exact for every pattern. namespace reference: the same, as the formula reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moesaic::codec {

// The exponent of each word.
void take_exponents(std::span<const std::uint16_t> words, std::uint8_t* exponents);

// plane[i] for each word, and (index, exponent) of the words whose exponent is not held[i], in ascending
// order; returns how many. `index` and `exponent` have room for words.size(), at most 65536.
std::size_t split_planes(std::span<const std::uint16_t> words, const std::uint8_t* held, std::uint8_t* plane,
                         std::uint16_t* index, std::uint8_t* exponent);

// The words of a plane and exponents.
void join_planes(const std::uint8_t* plane, const std::uint8_t* exponents, std::span<std::uint16_t> words);

// The indices where a and b, equally long, at most 65536, differ, ascending, into `index`; returns how many.
// Where there are more than `limit`: limit + 1, and nothing into `index`, having looked no farther than it
// must.
std::size_t find_different(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b,
                           std::size_t limit, std::uint16_t* index);

namespace reference {

void take_exponents(std::span<const std::uint16_t> words, std::uint8_t* exponents);
std::size_t split_planes(std::span<const std::uint16_t> words, const std::uint8_t* held, std::uint8_t* plane,
                         std::uint16_t* index, std::uint8_t* exponent);
void join_planes(const std::uint8_t* plane, const std::uint8_t* exponents, std::span<std::uint16_t> words);
std::size_t find_different(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b,
                           std::size_t limit, std::uint16_t* index);

}  // namespace reference
}  // namespace moesaic::codec
