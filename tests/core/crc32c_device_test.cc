#include "moesaic/core/crc32c_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "moesaic/core/crc32c.h"
#include "tests/core/host_warp.h"

namespace moesaic {
namespace {

TEST(DeviceCrc32c, EqualsTheCpusAtAnySizePlaceAndSeed) {
  const auto tables = crc32c_tables();
  std::vector<std::byte> bytes(70000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  for (const bool backwards : {false, true}) {
    for (const std::size_t n : {0, 1, 3, 4, 12, 31, 32, 127, 128, 129, 1000, 4096, 65536}) {
      for (const std::size_t begin : {0, 1, 2, 3, 20}) {
        for (const std::uint32_t seed : {0u, 1u, 0xdeadbeefu}) {
          const auto part = std::span(bytes).subspan(begin, n);
          ASSERT_EQ(crc32c(HostWarp{backwards}, tables, reinterpret_cast<const std::uint8_t*>(part.data()), n,
                           seed),
                    crc32c(part, seed))
              << n << " bytes at " << begin << ", seed " << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
