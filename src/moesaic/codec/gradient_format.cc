#include "moesaic/codec/gradient_format.h"

#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/fields.h"
#include "moesaic/core/crc32c.h"

namespace moesaic::codec {
namespace {

constexpr std::uint32_t kMagic = 0x47454f4d;  // "MOEG"
constexpr std::uint8_t kVersion = 1;

}  // namespace

void write(GradientHeader& header, std::span<std::byte> to) {
  put(to, 0, kMagic);
  put(to, 4, kVersion);
  put(to, 5, static_cast<std::uint8_t>(header.wire));
  put(to, 6, std::uint16_t{0});
  put(to, 8, header.unit);
  put(to, 16, header.words);
  put(to, 24, header.chunk_words);
  put(to, 28, header.side_bytes);
  put(to, 32, header.side_crc);
  header.crc = crc32c(to.first(36));
  put(to, 36, header.crc);
}

GradientHeader read_gradient_header(std::span<const std::byte> from) {
  check_bytes(from.size() >= kGradientHeaderBytes, "got {} bytes, expected a header of {}", from.size(),
              kGradientHeaderBytes);
  const auto magic = get<std::uint32_t>(from, 0);
  check_bytes(magic == kMagic, "got magic {:#010x}, expected {:#010x}", magic, kMagic);
  const auto version = get<std::uint8_t>(from, 4);
  check_bytes(version == kVersion, "got version {}, expected {}", version, kVersion);
  const auto crc = get<std::uint32_t>(from, 36);
  const auto computed = crc32c(from.first(36));
  check_bytes(crc == computed, "the header's checksum is {:#010x}, its bytes give {:#010x}", crc, computed);

  // A sound checksum says that the bytes are as they were written, not that the writer was one of us.
  GradientHeader header;
  header.crc = crc;
  const auto wire = get<std::uint8_t>(from, 5);
  check_bytes(wire < std::size(kGradientWires), "got wire {}, expected less than {}", wire,
              std::size(kGradientWires));
  header.wire = kGradientWires[wire];
  const auto rest = get<std::uint16_t>(from, 6);
  check_bytes(rest == 0, "got {:#x} where the header has zeros", rest);
  header.unit = get<std::uint64_t>(from, 8);
  header.words = get<std::uint64_t>(from, 16);
  header.chunk_words = get<std::uint32_t>(from, 24);
  check_bytes(valid_chunk_words(header.chunk_words), "got chunks of {} words, expected 2, 4, .. {}",
              header.chunk_words, kMaxChunkWords);
  header.side_bytes = get<std::uint32_t>(from, 28);
  header.side_crc = get<std::uint32_t>(from, 32);
  return header;
}

}  // namespace moesaic::codec
