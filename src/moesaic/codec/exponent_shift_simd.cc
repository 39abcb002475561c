#include "moesaic/codec/exponent_shift.h"
#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/codec/exponent_shift_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using I16 = hn::CappedTag<std::int16_t, 16>;
using U16 = hn::RebindToUnsigned<I16>;
using Numbers = hn::Vec<I16>;

// The words with other exponents: new_exponent(exponent, predicted), brought into 1 to 255, which it misses
// by no more than 255.
template <typename NewExponent>
HWY_INLINE hn::Vec<U16> replaced(hn::Vec<U16> word, Numbers row, const std::int16_t* column,
                                 NewExponent new_exponent) {
  const auto one = hn::Set(I16(), 1), most = hn::Set(I16(), 255);
  const Numbers old = hn::BitCast(I16(), hn::And(hn::ShiftRight<7>(word), hn::Set(U16(), 0xff)));
  const Numbers scale = hn::ShiftRight<2>(hn::Add(row, hn::LoadU(I16(), column)));
  Numbers exponent = new_exponent(old, hn::Clamp(scale, one, most));
  exponent = hn::Add(exponent, hn::And(hn::VecFromMask(I16(), hn::Lt(exponent, one)), most));
  exponent = hn::Sub(exponent, hn::And(hn::VecFromMask(I16(), hn::Gt(exponent, most)), most));
  const auto put = hn::BitCast(U16(), hn::ShiftLeft<7>(exponent));
  const auto moved = hn::Or(hn::And(word, hn::Set(U16(), 0x807f)), put);
  return hn::IfThenElse(hn::RebindMask(U16(), hn::Eq(old, hn::Zero(I16()))), word, moved);
}

// How many words were done: whole vectors.
template <typename NewExponent>
HWY_INLINE std::size_t replace_all(std::span<const std::uint16_t> from, std::int16_t row,
                                   const std::int16_t* column, std::uint16_t* to, NewExponent new_exponent) {
  const std::size_t lanes = hn::Lanes(I16());
  const Numbers rounded = hn::Set(I16(), static_cast<std::int16_t>(row + 2));
  std::size_t j = 0;
  for (; j + lanes <= from.size(); j += lanes) {
    hn::StoreU(replaced(hn::LoadU(U16(), from.data() + j), rounded, column + j, new_exponent), U16(), to + j);
  }
  return j;
}

void ShiftExponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                    std::uint16_t* to) {
  const auto middle = hn::Set(I16(), 128);
  const std::size_t done = replace_all(
      from, row, column, to, [&](Numbers e, Numbers p) HWY_ATTR { return hn::Add(hn::Sub(e, p), middle); });
  reference::shift_exponents(from.subspan(done), row, column + done, to + done);
}

void UnshiftExponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                      std::uint16_t* to) {
  const auto middle = hn::Set(I16(), 128);
  const std::size_t done = replace_all(
      from, row, column, to, [&](Numbers t, Numbers p) HWY_ATTR { return hn::Sub(hn::Add(t, p), middle); });
  reference::unshift_exponents(from.subspan(done), row, column + done, to + done);
}

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace moesaic::codec {

HWY_EXPORT(ShiftExponents);
HWY_EXPORT(UnshiftExponents);

void shift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                     std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(ShiftExponents)(from, row, column, to);
}

void unshift_exponents(std::span<const std::uint16_t> from, std::int16_t row, const std::int16_t* column,
                       std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(UnshiftExponents)(from, row, column, to);
}

}  // namespace moesaic::codec
#endif  // HWY_ONCE
