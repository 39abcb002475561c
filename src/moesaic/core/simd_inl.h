// simd_inl.h: vectors of fp32 read from and written to rows of fp32 or bf16, and a loop over a row with its
// tail.
//
// For *_simd.cc only, which include it once per instruction set (hence no plain include guard).
// A tail goes through the same vector instructions as whole vectors, so an element's bits do not depend on
// where in its row it stands.
#if defined(MOESAIC_CORE_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOESAIC_CORE_SIMD_INL_H
#undef MOESAIC_CORE_SIMD_INL_H
#else
#define MOESAIC_CORE_SIMD_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "moesaic/core/bf16.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, 16>;
using Vector = hn::Vec<F32>;

inline Vector load_vector(const float* from) { return hn::LoadU(F32(), from); }

inline Vector load_vector(const BF16* from) {
  const hn::Rebind<std::uint32_t, F32> u32;
  const hn::Rebind<std::uint16_t, F32> u16;
  // Not &from->bits: rows of a message may lie at any byte.
  const auto bits = hn::LoadU(u16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(u32, bits)));
}

inline void store_vector(float* to, Vector value) { hn::StoreU(value, F32(), to); }

// to_bf16 of core/bf16.h, lane by lane: its 16 bits in each 32.
inline hn::Vec<hn::Rebind<std::uint32_t, F32>> bf16_bits(Vector value) {
  const hn::Rebind<std::uint32_t, F32> u32;
  const auto word = hn::BitCast(u32, value);
  const auto upper = hn::ShiftRight<16>(word);
  const auto rounding = hn::Add(hn::Set(u32, 0x7fffu), hn::And(upper, hn::Set(u32, 1u)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(word, rounding));
  const auto quiet_nan = hn::Or(upper, hn::Set(u32, 0x40u));
  return hn::IfThenElse(hn::RebindMask(u32, hn::IsNaN(value)), quiet_nan, rounded);
}

inline void store_vector(BF16* to, Vector value) {
  const hn::Rebind<std::int32_t, F32> i32;
  const hn::Rebind<std::uint16_t, F32> u16;
  hn::StoreU(hn::DemoteTo(u16, hn::BitCast(i32, bf16_bits(value))), u16,
             reinterpret_cast<std::uint16_t*>(to));
}

// As if stored as a T and loaded again.
template <typename T>
Vector rounded_to(Vector value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return hn::BitCast(F32(), hn::ShiftLeft<16>(bf16_bits(value)));
  } else {
    return value;
  }
}

// How a loop body reads and writes: a whole vector, or the first `count` lanes of one (the others read as 0).
struct Whole {
  template <typename T>
  Vector load(const T* from) const {
    return load_vector(from);
  }
  template <typename T>
  void store(T* to, Vector value) const {
    store_vector(to, value);
  }
};

struct Tail {
  std::int64_t count;

  template <typename T>
  Vector load(const T* from) const {
    T lanes[hn::MaxLanes(F32())] = {};
    std::memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(T));
    return load_vector(lanes);
  }
  template <typename T>
  void store(T* to, Vector value) const {
    T lanes[hn::MaxLanes(F32())];
    store_vector(lanes, value);
    std::memcpy(to, lanes, static_cast<std::size_t>(count) * sizeof(T));
  }
};

// Calls body(access, i) for i = 0, N, 2N, ... < n, where `access` is a Whole or a Tail.
template <typename Body>
HWY_INLINE void for_each_vector(std::int64_t n, const Body& body) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(Whole{}, i);
  if (i < n) body(Tail{n - i}, i);
}

}  // namespace moesaic::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
