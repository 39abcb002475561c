// crc32c.h: the Castagnoli CRC of a byte range (ISA-L), as iSCSI and ext4 define it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moesaic {

// crc32c("123456789") == 0xE3069283. Pass an earlier result as `seed` to continue over more bytes.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace moesaic
