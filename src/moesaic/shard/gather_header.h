// gather_header.h: what every rank says before it sends its coded part of a unit, so that all know the same.
//
// Local; no torch. 56 bytes, little-endian, with a checksum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moesaic/codec/method.h"
#include "moesaic/codec/reference_state.h"

namespace moesaic {

struct GatherHeader {
  std::uint64_t unit = 0;
  codec::Method method = codec::Method::kRaw;
  bool key = true;
  std::uint64_t first_bytes = 0;  // of the first slice
  // What the sender holds of its own part, and a digest of all that it holds.
  std::uint64_t epoch = 0;
  std::uint64_t hash = 0;
  std::uint64_t digest = 0;
};
inline constexpr std::size_t kGatherHeaderBytes = 56;

std::array<std::byte, kGatherHeaderBytes> to_bytes(const GatherHeader& header);
// CorruptData, naming `rank`, when the checksum or a field is wrong.
GatherHeader gather_header_from(std::span<const std::byte> bytes, int rank);

// A digest is the exclusive or of these, over the parts that are held.
std::uint64_t digest_of(int part, std::uint64_t epoch, std::uint64_t hash);

}  // namespace moesaic
