#include <algorithm>
#include <cstring>

#include "moesaic/codec/int8.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/codec/int8_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include "moesaic/core/simd_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

using namespace moesaic::HWY_NAMESPACE;

using I32 = hn::RebindToSigned<F32>;
using I8 = hn::Rebind<std::int8_t, F32>;

const BF16* as_bf16(const std::uint16_t* words) { return reinterpret_cast<const BF16*>(words); }
BF16* as_bf16(std::uint16_t* words) { return reinterpret_cast<BF16*>(words); }

std::uint16_t largest_magnitude(const std::uint16_t* words) {
  const hn::CappedTag<std::uint16_t, 16> u16;
  const auto no_sign = hn::Set(u16, 0x7fff);
  auto largest = hn::Zero(u16);
  for (std::size_t i = 0; i < kBlockWords; i += hn::Lanes(u16)) {
    largest = hn::Max(largest, hn::And(hn::LoadU(u16, words + i), no_sign));
  }
  std::uint16_t lanes[16] = {};
  hn::StoreU(largest, u16, lanes);
  return *std::max_element(lanes, lanes + 16);
}

bool Quantise(std::span<const std::uint16_t> words, std::uint16_t* scales, std::int8_t* integers) {
  const std::size_t whole = words.size() / kBlockWords;
  for (std::size_t block = 0; block < whole; ++block) {
    const std::uint16_t* from = words.data() + block * kBlockWords;
    std::int8_t* to = integers + block * kBlockWords;
    const std::uint16_t magnitude = largest_magnitude(from);
    if (magnitude >= 0x7f80) return false;
    scales[block] = block_scale(magnitude);
    if (magnitude == 0) {
      std::memset(to, 0, kBlockWords);
      continue;
    }
    const auto scale = hn::Set(F32(), to_float(BF16{scales[block]}));
    for (std::size_t i = 0; i < kBlockWords; i += hn::Lanes(F32())) {
      const auto quotient = hn::Div(load_vector(as_bf16(from + i)), scale);
      hn::StoreU(hn::DemoteTo(I8(), hn::NearestInt(quotient)), I8(), to + i);
    }
  }
  const std::size_t done = whole * kBlockWords;
  return reference::quantise(words.subspan(done), scales + whole, integers + done);
}

void Dequantise(const std::uint16_t* scales, const std::int8_t* integers, std::span<std::uint16_t> words) {
  const std::size_t whole = words.size() / kBlockWords;
  for (std::size_t block = 0; block < whole; ++block) {
    const std::size_t begin = block * kBlockWords;
    const auto scale = hn::Set(F32(), to_float(BF16{scales[block]}));
    for (std::size_t i = begin; i < begin + kBlockWords; i += hn::Lanes(F32())) {
      const auto q = hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(I8(), integers + i)));
      store_vector(as_bf16(words.data() + i), hn::Mul(q, scale));
    }
  }
  const std::size_t done = whole * kBlockWords;
  reference::dequantise(scales + whole, integers + done, words.subspan(done));
}

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::codec {

HWY_EXPORT(Quantise);
HWY_EXPORT(Dequantise);

bool quantise(std::span<const std::uint16_t> words, std::uint16_t* scales, std::int8_t* integers) {
  return HWY_DYNAMIC_DISPATCH(Quantise)(words, scales, integers);
}

void dequantise(const std::uint16_t* scales, const std::int8_t* integers, std::span<std::uint16_t> words) {
  HWY_DYNAMIC_DISPATCH(Dequantise)(scales, integers, words);
}

}  // namespace moesaic::codec
#endif  // HWY_ONCE
