#include "moesaic/codec/planes.h"

namespace moesaic::codec::reference {

void take_exponents(std::span<const std::uint16_t> words, std::uint8_t* exponents) {
  for (std::size_t i = 0; i < words.size(); ++i) exponents[i] = static_cast<std::uint8_t>(words[i] >> 7);
}

std::size_t split_planes(std::span<const std::uint16_t> words, const std::uint8_t* held, std::uint8_t* plane,
                         std::uint16_t* index, std::uint8_t* exponent) {
  std::size_t changed = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    plane[i] = static_cast<std::uint8_t>((words[i] >> 8 & 0x80) | (words[i] & 0x7f));
    const auto now = static_cast<std::uint8_t>(words[i] >> 7);
    if (now == held[i]) continue;
    index[changed] = static_cast<std::uint16_t>(i);
    exponent[changed] = now;
    ++changed;
  }
  return changed;
}

void join_planes(const std::uint8_t* plane, const std::uint8_t* exponents, std::span<std::uint16_t> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint16_t>((plane[i] & 0x80) << 8 | exponents[i] << 7 | (plane[i] & 0x7f));
  }
}

std::size_t find_different(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b,
                           std::size_t limit, std::uint16_t* index) {
  std::size_t differ = 0, found = 0;
  for (std::size_t i = 0; i < a.size(); ++i) differ += a[i] != b[i];
  if (differ > limit) return limit + 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) index[found++] = static_cast<std::uint16_t>(i);
  }
  return found;
}

}  // namespace moesaic::codec::reference
