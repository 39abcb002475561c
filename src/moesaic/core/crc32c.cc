#include "moesaic/core/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace moesaic {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
  // ISA-L takes an int length and leaves the two inversions of the standard to the caller.
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  std::uint32_t crc = ~seed;
  auto* at = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
  for (std::size_t left = bytes.size(); left > 0;) {
    const std::size_t piece = std::min(left, kPiece);
    crc = crc32_iscsi(at, static_cast<int>(piece), crc);
    at += piece;
    left -= piece;
  }
  return ~crc;
}

}  // namespace moesaic
