#include "moesaic/codec/wire.h"

#include <array>

#include "moesaic/codec/fields.h"
#include "moesaic/core/crc32c.h"
#include "moesaic/core/error.h"

namespace moesaic::codec {
namespace {

constexpr std::uint32_t kMagic = 0x43454f4d;  // "MOEC"
constexpr std::uint8_t kVersion = 1;
constexpr std::array kDTypes = {DType::kBF16, DType::kF32, DType::kF16};  // 1, 2, 3 on the wire

constexpr std::array<std::string_view, kNumChunkModes> kModeNames = {
    "raw", "same", "sparse", "exponent_reuse", "residual", "momentum", "entropy", "int8"};

std::uint8_t code_of(DType dtype) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i] == dtype) return static_cast<std::uint8_t>(i + 1);
  }
  throw InvalidArgument(fmt::format("codec: got dtype {}, expected bf16, fp32 or fp16", name_of(dtype)));
}

template <typename... Args>
void check(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) throw CorruptData(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

std::string_view name_of(ChunkMode mode) { return kModeNames.at(static_cast<std::size_t>(mode)); }

bool may_hold(Method method, bool key, ChunkMode mode) {
  switch (mode) {
    case ChunkMode::kRaw:
      return true;
    case ChunkMode::kInt8:
      return method == Method::kInt8;
    case ChunkMode::kEntropy:
      return method == Method::kEntropy || (key && lossless(method) && method != Method::kRaw);
    case ChunkMode::kExponentReuse:
      return !key && method == Method::kExponentReuse;
    case ChunkMode::kMomentum:
      return !key && method == Method::kMomentum;
    case ChunkMode::kSame:
    case ChunkMode::kSparse:
    case ChunkMode::kResidual:
      return !key && (method == Method::kResidual || method == Method::kMomentum);
  }
  return false;
}

void write(Header& header, std::span<std::byte> to) {
  put(to, 0, kMagic);
  put(to, 4, kVersion);
  put(to, 5, code_of(header.dtype));
  put(to, 6, static_cast<std::uint8_t>(header.method));
  put(to, 7, static_cast<std::uint8_t>(header.key));
  put(to, 8, header.unit);
  put(to, 16, header.epoch);
  put(to, 24, header.words);
  put(to, 32, header.reference_hash);
  put(to, 40, header.chunk_words);
  put(to, 44, header.tables_bytes);
  put(to, 48, header.tables_crc);
  put(to, 52, std::uint64_t{0});
  header.crc = crc32c(to.first(60));
  put(to, 60, header.crc);
}

Header read_header(std::span<const std::byte> from) {
  const auto magic = get<std::uint32_t>(from, 0);
  check(magic == kMagic, "codec message: got magic {:#010x}, expected {:#010x}", magic, kMagic);
  const auto version = get<std::uint8_t>(from, 4);
  check(version == kVersion, "codec message: got version {}, expected {}", version, kVersion);
  const auto crc = get<std::uint32_t>(from, 60);
  const auto computed = crc32c(from.first(60));
  check(crc == computed, "codec message: the header's checksum is {:#010x}, its bytes give {:#010x}", crc,
        computed);

  // A sound checksum says that the bytes are as they were written, not that the writer was one of us.
  Header header;
  header.crc = crc;
  const auto dtype = get<std::uint8_t>(from, 5);
  check(dtype >= 1 && dtype <= kDTypes.size(), "codec message: got dtype {}, expected 1 to {}", dtype,
        kDTypes.size());
  header.dtype = kDTypes[dtype - 1u];
  const auto method = get<std::uint8_t>(from, 6);
  check(method < std::size(kMethods), "codec message: got method {}, expected less than {}", method,
        std::size(kMethods));
  header.method = kMethods[method];
  check(header.dtype == DType::kBF16 || header.method == Method::kRaw,
        "codec message: got {} by method {}, expected raw", name_of(header.dtype), name_of(header.method));
  const auto key = get<std::uint8_t>(from, 7);
  check(key <= 1, "codec message: got key {}, expected 0 or 1", key);
  header.key = key == 1;
  header.unit = get<std::uint64_t>(from, 8);
  header.epoch = get<std::uint64_t>(from, 16);
  header.words = get<std::uint64_t>(from, 24);
  header.reference_hash = get<std::uint64_t>(from, 32);
  check(!header.key || header.reference_hash == 0, "codec message: a key names a reference, {:#018x}",
        header.reference_hash);
  header.chunk_words = get<std::uint32_t>(from, 40);
  check(valid_chunk_words(header.chunk_words), "codec message: got chunks of {} words, expected 2, 4, .. {}",
        header.chunk_words, kMaxChunkWords);
  header.tables_bytes = get<std::uint32_t>(from, 44);
  header.tables_crc = get<std::uint32_t>(from, 48);
  const auto rest = get<std::uint64_t>(from, 52);
  check(rest == 0, "codec message: got {:#x} where the header has zeros", rest);
  return header;
}

void write(const ChunkHeader& header, std::uint32_t message_crc, std::span<std::byte> chunk) {
  put(chunk, 0, static_cast<std::uint32_t>(header.mode) | header.number << 8);
  put(chunk, 4, header.length);
  put(chunk, 8, header.words_crc);
  put(chunk, 12, chunk_crc(message_crc, chunk));
}

ChunkHeader read_chunk_header(std::span<const std::byte> from) {
  const auto first = get<std::uint32_t>(from, 0);
  return {static_cast<ChunkMode>(first & 0xff), first >> 8, get<std::uint32_t>(from, 4),
          get<std::uint32_t>(from, 8), get<std::uint32_t>(from, 12)};
}

std::uint32_t chunk_crc(std::uint32_t message_crc, std::span<const std::byte> chunk) {
  return crc32c(chunk.subspan(kChunkHeaderBytes), crc32c(chunk.first(12), message_crc));
}

}  // namespace moesaic::codec
