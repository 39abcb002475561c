#include "moesaic/shard/gather_header.h"

#include <gtest/gtest.h>

#include "tests/comm/thrown.h"

namespace moesaic::testing {
namespace {

TEST(GatherHeader, SurvivesItsBytesAndNoFlippedBit) {
  const GatherHeader header{.unit = 7,
                            .method = codec::Method::kMomentum,
                            .key = false,
                            .first_bytes = 123,
                            .epoch = 4,
                            .hash = 0x1234567890abcdef,
                            .digest = 99};
  const auto bytes = to_bytes(header);
  const GatherHeader read = gather_header_from(bytes, 0);
  EXPECT_EQ(to_bytes(read), bytes);
  EXPECT_EQ(read.hash, header.hash);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    EXPECT_SAYS(thrown_by([&] { gather_header_from(damaged, 3); }),
                "CorruptData: the gather header of rank 3");
  }
}

}  // namespace
}  // namespace moesaic::testing
