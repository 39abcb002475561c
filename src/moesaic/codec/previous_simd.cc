#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/codec/previous_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/highway.h>

#include "moesaic/codec/reference.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Two words are one 32-bit lane: their nibbles end up in its lowest byte.
void UpdatePrevious(std::span<const std::uint16_t> reference, std::span<const std::uint16_t> current,
                    std::span<std::uint8_t> previous) {
  const hn::CappedTag<std::uint16_t, 16> u16;
  const hn::RebindToSigned<decltype(u16)> i16;
  const hn::Repartition<std::uint32_t, decltype(u16)> u32;
  const hn::Rebind<std::uint8_t, decltype(u32)> bytes;
  const auto ordered = [&](auto words) {
    const auto minus = hn::ShiftRight<15>(hn::BitCast(i16, words));
    return hn::Xor(words, hn::ShiftRight<1>(hn::BitCast(u16, minus)));
  };
  std::size_t i = 0;
  if constexpr (hn::MaxLanes(u16) >= 2) {
    for (; i + hn::Lanes(u16) <= current.size(); i += hn::Lanes(u16)) {
      const auto difference =
          hn::Sub(ordered(hn::LoadU(u16, current.data() + i)), ordered(hn::LoadU(u16, reference.data() + i)));
      const auto minus = hn::ShiftRight<15>(hn::BitCast(i16, difference));
      // -32768 stays as it is, and counts as unsigned below.
      const auto magnitude = hn::Sub(hn::Xor(difference, hn::BitCast(u16, minus)), hn::BitCast(u16, minus));
      const auto small = hn::BitCast(i16, hn::Min(magnitude, hn::Set(u16, 255)));
      auto nibble = hn::And(minus, hn::Set(i16, 8));
      for (std::size_t level = 1; level < kNumLevels; ++level) {
        const auto reached = hn::Gt(small, hn::Set(i16, static_cast<std::int16_t>(kLevelFirst[level] - 1)));
        nibble = hn::Sub(nibble, hn::VecFromMask(i16, reached));
      }
      const auto pairs = hn::BitCast(u32, nibble);
      hn::StoreU(hn::TruncateTo(bytes, hn::Or(pairs, hn::ShiftRight<12>(pairs))), bytes,
                 previous.data() + i / 2);
    }
  }
  reference::update_previous(reference.subspan(i), current.subspan(i), previous.subspan(i / 2));
}

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "moesaic/core/error.h"

namespace moesaic::codec {

HWY_EXPORT(UpdatePrevious);

void update_previous(std::span<const std::uint16_t> reference, std::span<const std::uint16_t> current,
                     std::span<std::uint8_t> previous) {
  require(reference.size() == current.size(), "update_previous: got {} words against a reference of {}",
          current.size(), reference.size());
  require(previous.size() == previous_bytes(current.size()),
          "update_previous: got {} bytes of previous differences, expected {}", previous.size(),
          previous_bytes(current.size()));
  HWY_DYNAMIC_DISPATCH(UpdatePrevious)(reference, current, previous);
}

}  // namespace moesaic::codec
#endif  // HWY_ONCE
