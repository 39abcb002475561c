#include "moesaic/codec/planes.h"
#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/codec/planes_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/highway.h>

#include <bit>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using U16 = hn::CappedTag<std::uint16_t, 16>;
using U8 = hn::Rebind<std::uint8_t, U16>;
using I16 = hn::RebindToSigned<U16>;
using Words = hn::Vec<U16>;

// Lanes that hold less than 256, as bytes.
HWY_INLINE hn::Vec<U8> to_bytes(Words words) { return hn::DemoteTo(U8(), hn::BitCast(I16(), words)); }

HWY_INLINE Words exponents_of(Words words) { return hn::And(hn::ShiftRight<7>(words), hn::Set(U16(), 0xff)); }

// body(lane) for each lane of the mask, in ascending order.
template <typename Mask, typename Body>
HWY_INLINE void for_each_lane(Mask mask, const Body& body) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(U16(), mask, bytes);
  std::uint32_t bits;  // 16 lanes at most
  std::memcpy(&bits, bytes, sizeof bits);
  for (; bits != 0; bits &= bits - 1) body(static_cast<std::size_t>(std::countr_zero(bits)));
}

void TakeExponents(std::span<const std::uint16_t> words, std::uint8_t* exponents) {
  const std::size_t n = words.size();
  const std::size_t lanes = hn::Lanes(U16());
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(to_bytes(exponents_of(hn::LoadU(U16(), words.data() + i))), U8(), exponents + i);
  }
  reference::take_exponents(words.subspan(i), exponents + i);
}

std::size_t SplitPlanes(std::span<const std::uint16_t> words, const std::uint8_t* held, std::uint8_t* plane,
                        std::uint16_t* index, std::uint8_t* exponent) {
  const std::size_t n = words.size();
  const std::size_t lanes = hn::Lanes(U16());
  const auto sign = hn::Set(U16(), 0x80);
  const auto mantissa = hn::Set(U16(), 0x7f);
  std::size_t changed = 0;
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto word = hn::LoadU(U16(), words.data() + i);
    const auto rest = hn::Or(hn::And(hn::ShiftRight<8>(word), sign), hn::And(word, mantissa));
    hn::StoreU(to_bytes(rest), U8(), plane + i);
    const auto before = hn::PromoteTo(U16(), hn::LoadU(U8(), held + i));
    const auto differs = hn::Ne(exponents_of(word), before);
    if (hn::AllFalse(U16(), differs)) continue;
    for_each_lane(differs, [&](std::size_t lane) {
      index[changed] = static_cast<std::uint16_t>(i + lane);
      exponent[changed] = static_cast<std::uint8_t>(words[i + lane] >> 7);
      ++changed;
    });
  }
  const std::size_t tail =
      reference::split_planes(words.subspan(i), held + i, plane + i, index + changed, exponent + changed);
  for (std::size_t k = changed; k < changed + tail; ++k) index[k] = static_cast<std::uint16_t>(index[k] + i);
  return changed + tail;
}

void JoinPlanes(const std::uint8_t* plane, const std::uint8_t* exponents, std::span<std::uint16_t> words) {
  const std::size_t n = words.size();
  const std::size_t lanes = hn::Lanes(U16());
  const auto sign = hn::Set(U16(), 0x8000);
  const auto mantissa = hn::Set(U16(), 0x7f);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto rest = hn::PromoteTo(U16(), hn::LoadU(U8(), plane + i));
    const auto exponent = hn::PromoteTo(U16(), hn::LoadU(U8(), exponents + i));
    const auto outer = hn::Or(hn::And(hn::ShiftLeft<8>(rest), sign), hn::And(rest, mantissa));
    hn::StoreU(hn::Or(outer, hn::ShiftLeft<7>(exponent)), U16(), words.data() + i);
  }
  reference::join_planes(plane + i, exponents + i, words.subspan(i));
}

std::size_t FindDifferent(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b,
                          std::size_t limit, std::uint16_t* index) {
  const std::size_t n = a.size();
  const std::size_t lanes = hn::Lanes(U16());
  const std::size_t whole = n / lanes * lanes;
  const auto differs_at = [&](std::size_t i) {
    return hn::Ne(hn::LoadU(U16(), a.data() + i), hn::LoadU(U16(), b.data() + i));
  };
  // Counted first: where most words differ, that ends soon, and listing them is what takes time.
  std::size_t differ = 0;
  for (std::size_t i = 0; i < whole; i += lanes) {
    differ += hn::CountTrue(U16(), differs_at(i));
    if (differ > limit) return limit + 1;
  }
  for (std::size_t i = whole; i < n; ++i) differ += a[i] != b[i];
  if (differ > limit) return limit + 1;
  std::size_t found = 0;
  for (std::size_t i = 0; i < whole && found < differ; i += lanes) {
    for_each_lane(differs_at(i),
                  [&](std::size_t lane) { index[found++] = static_cast<std::uint16_t>(i + lane); });
  }
  for (std::size_t i = whole; i < n; ++i) {
    if (a[i] != b[i]) index[found++] = static_cast<std::uint16_t>(i);
  }
  return found;
}

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::codec {

HWY_EXPORT(TakeExponents);
HWY_EXPORT(SplitPlanes);
HWY_EXPORT(JoinPlanes);
HWY_EXPORT(FindDifferent);

void take_exponents(std::span<const std::uint16_t> words, std::uint8_t* exponents) {
  HWY_DYNAMIC_DISPATCH(TakeExponents)(words, exponents);
}

std::size_t split_planes(std::span<const std::uint16_t> words, const std::uint8_t* held, std::uint8_t* plane,
                         std::uint16_t* index, std::uint8_t* exponent) {
  return HWY_DYNAMIC_DISPATCH(SplitPlanes)(words, held, plane, index, exponent);
}

void join_planes(const std::uint8_t* plane, const std::uint8_t* exponents, std::span<std::uint16_t> words) {
  HWY_DYNAMIC_DISPATCH(JoinPlanes)(plane, exponents, words);
}

std::size_t find_different(std::span<const std::uint16_t> a, std::span<const std::uint16_t> b,
                           std::size_t limit, std::uint16_t* index) {
  return HWY_DYNAMIC_DISPATCH(FindDifferent)(a, b, limit, index);
}

}  // namespace moesaic::codec
#endif  // HWY_ONCE
