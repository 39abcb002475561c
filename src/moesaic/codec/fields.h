// fields.h: numbers at byte offsets of a header. The span is checked, alignment does not matter.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace moesaic::codec {

static_assert(std::endian::native == std::endian::little, "words are copied to the wire as they lie");

template <typename T>
void put(std::span<std::byte> to, std::size_t at, T value) {
  std::memcpy(to.subspan(at, sizeof value).data(), &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte> from, std::size_t at) {
  T value;
  std::memcpy(&value, from.subspan(at, sizeof value).data(), sizeof value);
  return value;
}

}  // namespace moesaic::codec
