#include "moesaic/codec/planes.h"

#include "tests/codec/ends.h"

namespace moesaic::codec {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 7, 15, 16, 17, 127, 1009, 65535, 65536};

TEST(Planes, HoldSignMantissaAndExponentOfEveryPattern) {
  for_every_target([] {
    const Words words = all_patterns();
    std::vector<std::uint8_t> exponents(65536);
    take_exponents(words, exponents.data());
    std::vector<std::uint8_t> plane(65536);
    Words index(65536);
    std::vector<std::uint8_t> changed(65536);
    ASSERT_EQ(split_planes(words, exponents.data(), plane.data(), index.data(), changed.data()), 0u);
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      ASSERT_EQ(exponents[bits], bits / 128 % 256);
      ASSERT_EQ(plane[bits], bits / 32768 * 128 + bits % 128);
    }
    Words back(65536);
    join_planes(plane.data(), exponents.data(), back);
    ASSERT_EQ(back, words);
  });
}

TEST(Planes, ListEveryExponentThatIsNotTheHeldOne) {
  for_every_target([] {
    for (const std::size_t n : kSizes) {
      const Words words = weights(n, 3);
      std::vector<std::uint8_t> held(n), plane(n), expected_plane(n), exponent(n), expected_exponent(n);
      Words index(n), expected_index(n);
      take_exponents(stepped(words, 4, 0.5f, 1e-2f), held.data());
      const std::size_t count = split_planes(words, held.data(), plane.data(), index.data(), exponent.data());
      const std::size_t expected = reference::split_planes(words, held.data(), expected_plane.data(),
                                                           expected_index.data(), expected_exponent.data());
      ASSERT_EQ(count, expected);
      if (n >= 1000) {
        ASSERT_GT(count, n / 20);
      }
      ASSERT_EQ(plane, expected_plane);
      for (std::size_t k = 0; k < count; ++k) {
        ASSERT_EQ(index[k], expected_index[k]);
        ASSERT_EQ(exponent[k], expected_exponent[k]);
      }
      Words back(n), expected_back(n);
      join_planes(plane.data(), held.data(), back);
      reference::join_planes(plane.data(), held.data(), expected_back);
      ASSERT_EQ(back, expected_back);
    }
  });
}

TEST(Planes, FindWhatDiffersUpToALimit) {
  for_every_target([] {
    for (const std::size_t n : kSizes) {
      for (const float share : {0.0f, 0.01f, 0.5f, 1.0f}) {
        const Words before = weights(n, 5), now = stepped(before, 6, share, 1e-2f);
        for (const std::size_t limit : {std::size_t{0}, std::size_t{1}, n / 7, n}) {
          Words index(limit + 1, 0xfffe), expected(limit + 1, 0xfffe);
          const std::size_t found = find_different(before, now, limit, index.data());
          ASSERT_EQ(found, reference::find_different(before, now, limit, expected.data()));
          ASSERT_EQ(index, expected) << "n " << n << ", share " << share << ", limit " << limit;
          if (found > limit) {
            ASSERT_EQ(found, limit + 1);
          }
          if (share == 0) {
            ASSERT_EQ(found, 0u);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace moesaic::codec
