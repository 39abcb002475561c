#include "moesaic/codec/device_plan.h"

#include <optional>

#include "moesaic/codec/corrupt.h"
#include "moesaic/core/crc32c.h"

namespace moesaic::codec {

DevicePart DevicePlan::part(const DeviceTables* on_device, const std::uint16_t* reference,
                            const std::uint8_t* differences) const {
  return {on_device, reference, differences, header.words, header.chunk_words, header.crc, prefix_bytes};
}

DevicePlan device_plan(const Reference& reference, std::span<const std::byte> message) {
  check_bytes(message.size() >= kHeaderBytes, "codec message: got {} bytes, expected {} or more",
              message.size(), kHeaderBytes);
  DevicePlan plan{.header = read_header(message), .tables = {}};
  const Header& header = plan.header;
  require(header.method == Method::kRaw || header.method == Method::kEntropy ||
              header.method == Method::kResidual || header.method == Method::kMomentum,
          "codec on a device: got {}, expected raw, entropy, residual or momentum", name_of(header.method));
  check_bytes(header.words == reference.size(), "codec message: got {} words, expected {}", header.words,
              reference.size());
  const bool held_fits =
      header.key || (reference.valid() && header.epoch == reference.epoch() &&
                     header.reference_hash == reference.hash() && reference.keeps() >= needs(header.method));
  if (!held_fits) {
    throw ReferenceDiffers(
        fmt::format("codec message: it differs from epoch {}, hash {:#018x}; held are {}, {:#018x}",
                    header.epoch, header.reference_hash, reference.epoch(), reference.hash()));
  }
  for (std::uint8_t mode = 0; mode < kNumChunkModes; ++mode) {
    plan.modes |= std::uint32_t{may_hold(header.method, header.key, static_cast<ChunkMode>(mode))} << mode;
  }
  plan.prefix_bytes = kHeaderBytes + header.tables_bytes;
  check_bytes(message.size() >= plan.prefix_bytes, "codec message: got {} bytes, expected {} or more",
              message.size(), plan.prefix_bytes);

  const bool in_use = header.tables_bytes > 0 || header.tables_crc != 0;
  const auto sent = message.subspan(kHeaderBytes, header.tables_bytes);
  const bool of_difference = may_hold(header.method, header.key, ChunkMode::kResidual);
  const auto bytes = sent.empty() && of_difference ? std::as_bytes(reference.tables()) : sent;
  std::optional<DifferenceTables> difference;
  std::optional<EntropyTables> entropy;
  if (in_use) {
    const std::uint32_t crc = crc32c(bytes);
    if (crc != header.tables_crc) {
      const auto what = fmt::format("codec message: tables of checksum {:#010x}, expected {:#010x}", crc,
                                    header.tables_crc);
      if (sent.empty()) throw ReferenceDiffers(what);
      throw CorruptData(what);
    }
    const std::span numbers(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    if (of_difference) {
      difference = DifferenceTables::read(numbers);
    } else {
      entropy = EntropyTables::read(numbers);
    }
  }
  plan.tables = device_tables(difference ? &*difference : nullptr, entropy ? &*entropy : nullptr);
  return plan;
}

}  // namespace moesaic::codec
