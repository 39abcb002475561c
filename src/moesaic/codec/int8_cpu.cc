#include <algorithm>
#include <bit>
#include <cmath>

#include "moesaic/codec/int8.h"
#include "moesaic/core/bf16.h"

namespace moesaic::codec {

std::uint16_t block_scale(std::uint16_t magnitude) {
  // A quotient by 127 that fp32 holds in the upper half of its bits is exact; any other is rounded up.
  const auto bits = std::bit_cast<std::uint32_t>(to_float(BF16{magnitude}) / 127.0f);
  return static_cast<std::uint16_t>((bits >> 16) + ((bits & 0xffff) != 0));
}

bool reference::quantise(std::span<const std::uint16_t> words, std::uint16_t* scales, std::int8_t* integers) {
  for (std::size_t block = 0; block < block_count(words.size()); ++block) {
    const std::size_t begin = block * kBlockWords;
    const std::size_t end = std::min(begin + kBlockWords, words.size());
    std::uint16_t magnitude = 0;
    for (std::size_t i = begin; i < end; ++i) {
      magnitude = std::max<std::uint16_t>(magnitude, words[i] & 0x7fff);
    }
    if (magnitude >= 0x7f80) return false;
    scales[block] = block_scale(magnitude);
    const float scale = to_float(BF16{scales[block]});
    for (std::size_t i = begin; i < end; ++i) {
      integers[i] = magnitude == 0
                        ? std::int8_t{0}
                        : static_cast<std::int8_t>(std::nearbyint(to_float(BF16{words[i]}) / scale));
    }
  }
  return true;
}

void reference::dequantise(const std::uint16_t* scales, const std::int8_t* integers,
                           std::span<std::uint16_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = to_bf16(static_cast<float>(integers[i]) * to_float(BF16{scales[i / kBlockWords]})).bits;
  }
}

}  // namespace moesaic::codec
