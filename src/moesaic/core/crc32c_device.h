// crc32c_device.h: crc32c.h by a warp.
//
// A CRC is linear: the remainder of the bytes as a polynomial. 32 lanes take a piece each, and what a lane
// has is moved past the bytes behind it by a multiplication mod the polynomial.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "moesaic/core/device_code.h"

namespace moesaic {

// Polynomials of degree below 32 have the coefficient of x^0 in bit 31, as the bytes of a CRC do.
inline constexpr std::uint32_t kCrc32cPolynomial = 0x82f63b78u;

constexpr std::uint32_t crc_times_x(std::uint32_t a) {
  return a >> 1 ^ ((a & 1) != 0 ? kCrc32cPolynomial : 0);
}

constexpr std::uint32_t crc_product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int i = 0; i < 32; ++i, a <<= 1, b = crc_times_x(b)) product ^= (a >> 31) != 0 ? b : 0;
  return product;
}

// x^(8 * bytes): what a remainder is multiplied with when so many bytes follow.
constexpr std::uint32_t crc_power(std::uint64_t bytes) {
  std::uint32_t result = 0x80000000u, square = 0x00800000u;  // 1 and x^8
  for (; bytes > 0; bytes >>= 1, square = crc_product(square, square)) {
    if ((bytes & 1) != 0) result = crc_product(result, square);
  }
  return result;
}

// The remainder of a byte that 0 to 3 more follow; 4 KiB that have to lie in the device's memory.
struct Crc32cTables {
  std::uint32_t of_byte[4][256];
};

constexpr Crc32cTables crc32c_tables() {
  Crc32cTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t remainder = byte;
    for (auto& table : tables.of_byte) {
      for (int bit = 0; bit < 8; ++bit) remainder = crc_times_x(remainder);
      table[byte] = remainder;
    }
  }
  return tables;
}

// The remainder with the bytes after it.
MOESAIC_DEVICE inline std::uint32_t crc_extended(const Crc32cTables& tables, std::uint32_t remainder,
                                                 const std::uint8_t* bytes, std::uint64_t n) {
  std::uint64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    std::uint32_t word;
    if (reinterpret_cast<std::uintptr_t>(bytes + i) % 4 == 0) {
      memcpy(&word, __builtin_assume_aligned(bytes + i, 4), 4);
    } else {
      word = bytes[i] | bytes[i + 1] << 8 | bytes[i + 2] << 16 | std::uint32_t{bytes[i + 3]} << 24;
    }
    word ^= remainder;
    remainder = tables.of_byte[3][word & 255] ^ tables.of_byte[2][word >> 8 & 255] ^
                tables.of_byte[1][word >> 16 & 255] ^ tables.of_byte[0][word >> 24];
  }
  for (; i < n; ++i) remainder = remainder >> 8 ^ tables.of_byte[0][(remainder ^ bytes[i]) & 255];
  return remainder;
}

// crc32c() of crc32c.h. Pieces are equally long but for the first, which is shorter or empty: zeros in front
// of a polynomial change nothing.
template <class Warp>
MOESAIC_DEVICE std::uint32_t crc32c(const Warp& warp, const Crc32cTables& tables, const std::uint8_t* bytes,
                                    std::uint64_t n, std::uint32_t seed = 0) {
  const std::uint64_t piece = (n + 4 * kWarpLanes - 1) / (4 * kWarpLanes) * 4;
  Each<Warp, std::uint32_t> remainder;
  warp.each([&](unsigned lane) {
    const std::uint64_t behind = (kWarpLanes - 1 - lane) * piece;  // bytes of the lanes after this one
    const std::uint64_t end = behind < n ? n - behind : 0, begin = piece < end ? end - piece : 0;
    remainder[lane] = crc_extended(tables, 0, bytes + begin, end - begin);
  });
  std::uint32_t move = crc_power(piece);
  for (unsigned step = 1; step < kWarpLanes; step *= 2, move = crc_product(move, move)) {
    const auto other = warp.shuffle(remainder, [step](unsigned lane) { return lane ^ step; });
    warp.each([&](unsigned lane) {
      const bool right = (lane & step) != 0;
      const std::uint32_t former = right ? other[lane] : remainder[lane];
      remainder[lane] = crc_product(former, move) ^ (right ? remainder[lane] : other[lane]);
    });
  }
  const std::uint32_t start = crc_product(~seed, crc_power(n));
  std::uint32_t result = 0;
  warp.each([&](unsigned lane) { result = ~(remainder[lane] ^ start); });  // all lanes hold the same
  return result;
}

}  // namespace moesaic
