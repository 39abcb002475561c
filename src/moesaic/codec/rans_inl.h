// rans_inl.h: one step of all 32 lanes: push() and pop() of rans.h, to the bit.
//
// For *_simd.cc only, which include it once per instruction set (hence no plain include guard).
#if defined(MOESAIC_CODEC_RANS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOESAIC_CODEC_RANS_INL_H
#undef MOESAIC_CODEC_RANS_INL_H
#else
#define MOESAIC_CODEC_RANS_INL_H
#endif

#include "moesaic/codec/lanes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

// All ones where a >= b, or a < b; there is no unsigned comparison of words.
HWY_INLINE V16 at_least(V16 a, V16 b) { return hn::VecFromMask(U16(), hn::Eq(hn::Max(a, b), a)); }

struct LaneVectors {
  Words low, high;

  HWY_INLINE explicit LaneVectors(const Lanes& lanes)
      : low(load_words(lanes.low.data())), high(load_words(lanes.high.data())) {}
  HWY_INLINE void store(Lanes& lanes) const {
    store_words(low, lanes.low.data());
    store_words(high, lanes.high.data());
  }
};

// Up to this, the sign of a remainder shows in its 16 bits.
inline constexpr std::uint32_t kMaxPlainFrequency = 64000;

// The quotient nearest to (high : low) / divisor, for 0 < divisor and high < divisor. Rounding errors of fp32
// leave a remainder of at most divisor / 2 + 513 in size. A quotient of 65536 is 0 in 16 bits if kPlain,
// which the remainder's 16 bits do not mind, else 65535.
template <bool kPlain>
HWY_INLINE V16 nearest_quotient(V16 low, V16 high, V16 divisor) {
  const hn::RebindToSigned<U32> i32;
  const hn::RebindToFloat<U32> f32;
  const V16 zero = hn::Zero(U16());
  const auto divide = [&](V16 state16, V16 divisor16) {
    // Both halved: a state may need all 32 bits, and conversion is of signed numbers. The state is rounded
    // up, so that a remainder is never too large; the divisor's exponent goes down by one.
    const auto state32 = hn::BitCast(U32(), state16);
    const auto half_up = hn::ShiftRight<1>(hn::Add(state32, hn::Set(U32(), 1)));
    const auto state = hn::ConvertTo(f32, hn::BitCast(i32, half_up));
    const auto whole = hn::ConvertTo(f32, hn::BitCast(i32, hn::BitCast(U32(), divisor16)));
    const auto half = hn::BitCast(f32, hn::Sub(hn::BitCast(U32(), whole), hn::Set(U32(), 1u << 23)));
    auto quotient = hn::Div(state, half);
    if constexpr (!kPlain) quotient = hn::Min(quotient, hn::Set(f32, 65535.0f));
    // 2^23 + q has q in its lowest bits, rounded to nearest.
    return hn::BitCast(U32(), hn::Add(quotient, hn::Set(f32, 8388608.0f)));
  };
  return pack(divide(hn::InterleaveLower(U16(), low, high), hn::InterleaveLower(U16(), divisor, zero)),
              divide(hn::InterleaveUpper(U16(), low, high), hn::InterleaveUpper(U16(), divisor, zero)));
}

// As vectors: place = start + raw, frequency, and 2^width_log2. kPlain: no frequency is above
// kMaxPlainFrequency.
template <bool kPlain>
HWY_INLINE std::uint8_t* push(LaneVectors& lanes, const Words& place, const Words& frequency,
                              const Words& width, std::uint8_t* top) {
  Words full;
  Bytes full_bytes;
  for (std::size_t p = 0; p < kParts; ++p) full.part[p] = at_least(lanes.high.part[p], frequency.part[p]);
  for (std::size_t b = 0; b < kByteParts; ++b) {
    full_bytes.part[b] = pack_mask(full.part[2 * b], full.part[2 * b + 1]);
  }
  top = push_words(lanes.low, bits_of(full_bytes), top);
  for (std::size_t p = 0; p < kParts; ++p) {
    const auto renormalised = hn::MaskFromVec(full.part[p]);
    const V16 f = frequency.part[p];
    const V16 low = hn::IfThenElse(renormalised, lanes.high.part[p], lanes.low.part[p]);
    const V16 high = hn::AndNot(full.part[p], lanes.high.part[p]);
    const V16 nearest = nearest_quotient<kPlain>(low, high, f);
    const V16 product = hn::Mul(nearest, f);
    const V16 rest = hn::Sub(low, product);
    V16 negative;
    if constexpr (kPlain) {
      negative = hn::BitCast(U16(), hn::ShiftRight<15>(hn::BitCast(I16(), rest)));
    } else {  // bit 16 of the difference, from both halves and the borrow between them
      const V16 upper = hn::Sub(high, hn::MulHigh(nearest, f));
      const V16 no_borrow = at_least(low, product);
      const V16 bit16 = hn::Sub(hn::Sub(upper, no_borrow), hn::Set(U16(), 1));
      negative = hn::BitCast(U16(), hn::ShiftRight<15>(hn::BitCast(I16(), hn::ShiftLeft<15>(bit16))));
    }
    const V16 remainder = hn::Add(rest, hn::And(f, negative));
    lanes.high.part[p] = hn::Add(nearest, negative);
    lanes.low.part[p] = hn::Add(place.part[p], hn::Mul(remainder, width.part[p]));
  }
  return top;
}

// As vectors: frequency, and what the place in the symbol's slots gives for the rest.
HWY_INLINE void pop(LaneVectors& lanes, const Words& frequency, const Words& rest, StreamReader& reader) {
  const V16 zero = hn::Zero(U16());
  Words low, high, empty;
  Bytes empty_bytes;
  for (std::size_t p = 0; p < kParts; ++p) {
    const V16 f = frequency.part[p];
    low.part[p] = hn::Add(hn::Mul(f, lanes.high.part[p]), rest.part[p]);
    const V16 no_carry = at_least(low.part[p], rest.part[p]);
    high.part[p] = hn::Add(hn::Add(hn::MulHigh(f, lanes.high.part[p]), hn::Set(U16(), 1)), no_carry);
    empty.part[p] = hn::VecFromMask(U16(), hn::Eq(high.part[p], zero));
  }
  for (std::size_t b = 0; b < kByteParts; ++b) {
    empty_bytes.part[b] = pack_mask(empty.part[2 * b], empty.part[2 * b + 1]);
  }
  const std::uint32_t bits = bits_of(empty_bytes);
  const std::size_t bytes = 2 * static_cast<std::size_t>(std::popcount(bits));
  if (HWY_UNLIKELY(bytes > static_cast<std::size_t>(reader.halves - reader.halves_begin)))
    reader.check_halves(bytes);
  reader.halves -= bytes;
  const Words halves = spread_words(reader.halves, bits);
  for (std::size_t p = 0; p < kParts; ++p) {
    const auto renormalised = hn::MaskFromVec(empty.part[p]);
    lanes.high.part[p] = hn::IfThenElse(renormalised, low.part[p], high.part[p]);
    lanes.low.part[p] = hn::IfThenElse(renormalised, halves.part[p], low.part[p]);
  }
}

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
