// int8.h: bf16 words as int8 with a common scale for each block. LOSSY: the baseline that ZeRO++ stands for.
//
// Local. Each block of 128 words (the last may be shorter) has as its scale the least bf16 s with
// max|x| <= 127 s. A word travels as q = x / s, rounded to the nearest integer, ties to even, and comes back
// as q s, rounded to bf16: within s / 2 and that rounding. Every rank must compute with what came back, the
// sender included. namespace reference: the same, as the formula reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moesaic::codec {

inline constexpr std::size_t kBlockWords = 128;

constexpr std::size_t block_count(std::size_t words) { return (words + kBlockWords - 1) / kBlockWords; }

// block_count() scales and words.size() integers. False, with nothing of use written, when a word is infinite
// or not a number: a scale cannot carry those.
bool quantise(std::span<const std::uint16_t> words, std::uint16_t* scales, std::int8_t* integers);
void dequantise(const std::uint16_t* scales, const std::int8_t* integers, std::span<std::uint16_t> words);

namespace reference {

bool quantise(std::span<const std::uint16_t> words, std::uint16_t* scales, std::int8_t* integers);
void dequantise(const std::uint16_t* scales, const std::int8_t* integers, std::span<std::uint16_t> words);

}  // namespace reference

// The scale of a block whose largest magnitude is `magnitude`, the bits of a finite bf16 that is not
// negative.
std::uint16_t block_scale(std::uint16_t magnitude);

}  // namespace moesaic::codec
