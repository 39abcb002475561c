#include "moesaic/shard/gather_header.h"

#include <cstring>
#include <iterator>

#include "moesaic/core/crc32c.h"
#include "moesaic/core/error.h"

namespace moesaic {
namespace {

constexpr std::uint32_t kMagic = 0x48474d4d;  // "MMGH"

struct Wire {
  std::uint32_t magic;
  std::uint8_t method, key;
  std::uint16_t zero;
  std::uint64_t unit, first_bytes, epoch, hash, digest;
  std::uint32_t zero_too, crc;
};
static_assert(sizeof(Wire) == kGatherHeaderBytes);

std::uint32_t checksum(const Wire& wire) {
  return crc32c(std::as_bytes(std::span(&wire, 1)).first(offsetof(Wire, crc)));
}

}  // namespace

std::array<std::byte, kGatherHeaderBytes> to_bytes(const GatherHeader& header) {
  Wire wire{.magic = kMagic,
            .method = static_cast<std::uint8_t>(header.method),
            .key = header.key,
            .zero = 0,
            .unit = header.unit,
            .first_bytes = header.first_bytes,
            .epoch = header.epoch,
            .hash = header.hash,
            .digest = header.digest,
            .zero_too = 0,
            .crc = 0};
  wire.crc = checksum(wire);
  std::array<std::byte, kGatherHeaderBytes> bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

GatherHeader gather_header_from(std::span<const std::byte> bytes, int rank) {
  Wire wire;
  require(bytes.size() == sizeof wire, "gather header: got {} bytes, expected {}", bytes.size(), sizeof wire);
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != kMagic || wire.crc != checksum(wire) || wire.method >= std::size(codec::kMethods)) {
    throw CorruptData(
        fmt::format("the gather header of rank {} is damaged: magic {:#x}, expected {:#x}; checksum {:#x}, "
                    "expected {:#x}",
                    rank, wire.magic, kMagic, wire.crc, checksum(wire)));
  }
  return {.unit = wire.unit,
          .method = static_cast<codec::Method>(wire.method),
          .key = wire.key != 0,
          .first_bytes = wire.first_bytes,
          .epoch = wire.epoch,
          .hash = wire.hash,
          .digest = wire.digest};
}

std::uint64_t digest_of(int part, std::uint64_t epoch, std::uint64_t hash) {
  // Rounds of SplitMix64: every bit of the three reaches every bit of the result.
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (const std::uint64_t value : {static_cast<std::uint64_t>(part), epoch, hash}) {
    state = (state ^ value) + 0x9e3779b97f4a7c15;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    state ^= state >> 31;
  }
  return state;
}

}  // namespace moesaic
