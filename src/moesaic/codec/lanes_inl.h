// lanes_inl.h: the 32 lanes of a stream as vectors: words, bytes, and the stacks' compress and expand.
//
// For *_simd.cc only, which include it once per instruction set (hence no plain include guard).
// Lanes are kParts vectors of 16-bit words, in order, or kByteParts vectors of bytes. Packing words to bytes
// and widening them again work within blocks of 128 bits, so bytes lie in an order of their own; only the
// bits of masks are put back in order.
#if defined(MOESAIC_CODEC_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MOESAIC_CODEC_LANES_INL_H
#undef MOESAIC_CODEC_LANES_INL_H
#else
#define MOESAIC_CODEC_LANES_INL_H
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstdint>

#include "moesaic/codec/lane_shuffles.h"
#include "moesaic/codec/rans.h"

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using U16 = hn::CappedTag<std::uint16_t, 16>;
using I16 = hn::RebindToSigned<U16>;
using U32 = hn::Repartition<std::uint32_t, U16>;
using U8 = hn::Repartition<std::uint8_t, U16>;
using I8 = hn::RebindToSigned<U8>;
using Block8 = hn::CappedTag<std::uint8_t, 16>;
using V16 = hn::Vec<U16>;
using V8 = hn::Vec<U8>;

inline constexpr std::size_t kPartLanes = hn::MaxLanes(U16());
inline constexpr std::size_t kParts = kLanes / kPartLanes;
inline constexpr std::size_t kByteParts = kParts / 2;
inline constexpr std::size_t kGroups = kLanes / 8;  // a group: the eight lanes of a 128-bit block

struct Words {
  V16 part[kParts];
};
struct Bytes {
  V8 part[kByteParts];
};

// The low bytes of two vectors of words, block by block.
HWY_INLINE V8 pack(V16 first, V16 second) {
#if HWY_TARGET == HWY_AVX2
  // Bytes as they are, and masks, whose words are 0 or -1: saturation changes neither once the upper byte is
  // gone.
  const auto low = hn::Set(U16(), 0xff);
  return V8{_mm256_packus_epi16(hn::And(first, low).raw, hn::And(second, low).raw)};
#else
  return hn::ConcatEven(U8(), hn::BitCast(U8(), second), hn::BitCast(U8(), first));
#endif
}

// The same for words below 256.
HWY_INLINE V8 pack_small(V16 first, V16 second) {
#if HWY_TARGET == HWY_AVX2
  return V8{_mm256_packus_epi16(first.raw, second.raw)};
#else
  return pack(first, second);
#endif
}

// The same for words of 0 or -1.
HWY_INLINE V8 pack_mask(V16 first, V16 second) {
#if HWY_TARGET == HWY_AVX2
  return V8{_mm256_packs_epi16(first.raw, second.raw)};
#else
  return pack(first, second);
#endif
}

// The low halves of two vectors of 32-bit numbers, block by block.
HWY_INLINE V16 pack(hn::Vec<U32> first, hn::Vec<U32> second) {
#if HWY_TARGET == HWY_AVX2
  const auto low = hn::Set(U32(), 0xffffu);
  return V16{_mm256_packus_epi32(hn::And(first, low).raw, hn::And(second, low).raw)};
#else
  return hn::ConcatEven(U16(), hn::BitCast(U16(), second), hn::BitCast(U16(), first));
#endif
}

HWY_INLINE Bytes pack_small(const Words& words) {
  Bytes bytes;
  for (std::size_t b = 0; b < kByteParts; ++b)
    bytes.part[b] = pack_small(words.part[2 * b], words.part[2 * b + 1]);
  return bytes;
}

// low + 256 * high
HWY_INLINE Words widen(const Bytes& low, const Bytes& high) {
  Words words;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    words.part[2 * b] = hn::BitCast(U16(), hn::InterleaveLower(U8(), low.part[b], high.part[b]));
    words.part[2 * b + 1] = hn::BitCast(U16(), hn::InterleaveUpper(U8(), low.part[b], high.part[b]));
  }
  return words;
}

HWY_INLINE Words load_words(const std::uint16_t* from) {
  Words words;
  for (std::size_t p = 0; p < kParts; ++p) words.part[p] = hn::LoadU(U16(), from + p * kPartLanes);
  return words;
}

HWY_INLINE void store_words(const Words& words, std::uint16_t* to) {
  for (std::size_t p = 0; p < kParts; ++p) hn::StoreU(words.part[p], U16(), to + p * kPartLanes);
}

// Bytes in memory are in the order of lanes.
HWY_INLINE Bytes load_bytes(const std::uint8_t* from) {
  Bytes bytes;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    bytes.part[b] = hn::LoadU(U8(), from + b * 2 * kPartLanes);
#if HWY_TARGET == HWY_AVX2
    bytes.part[b] = V8{_mm256_permute4x64_epi64(bytes.part[b].raw, _MM_SHUFFLE(3, 1, 2, 0))};
#endif
  }
  return bytes;
}

HWY_INLINE void store_bytes(const Bytes& bytes, std::uint8_t* to) {
  for (std::size_t b = 0; b < kByteParts; ++b) {
    V8 part = bytes.part[b];
#if HWY_TARGET == HWY_AVX2
    part = V8{_mm256_permute4x64_epi64(part.raw, _MM_SHUFFLE(3, 1, 2, 0))};
#endif
    hn::StoreU(part, U8(), to + b * 2 * kPartLanes);
  }
}

// Entry `index` (0 to 15) of a table of 16 bytes.
HWY_INLINE Bytes look_up(const std::uint8_t* table, const Bytes& index) {
  const V8 entries = hn::LoadDup128(U8(), table);
  Bytes found;
  for (std::size_t b = 0; b < kByteParts; ++b) found.part[b] = hn::TableLookupBytes(entries, index.part[b]);
  return found;
}

HWY_INLINE Bytes if_then_else(const Bytes& mask, const Bytes& yes, const Bytes& no) {
  Bytes result;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    result.part[b] = hn::IfThenElse(hn::MaskFromVec(mask.part[b]), yes.part[b], no.part[b]);
  }
  return result;
}

// The same by the top bit of each byte.
HWY_INLINE Bytes if_negative(const Bytes& sign, const Bytes& yes, const Bytes& no) {
  Bytes result;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    result.part[b] = hn::BitCast(
        U8(), hn::IfNegativeThenElse(hn::BitCast(I8(), sign.part[b]), hn::BitCast(I8(), yes.part[b]),
                                     hn::BitCast(I8(), no.part[b])));
  }
  return result;
}

// Which lanes a mask of bytes has set, as one bit each: bits 8g to 8g+7 are group g.
HWY_INLINE std::uint32_t bits_of(const Bytes& mask) {
  std::uint32_t bits = 0;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    std::uint64_t of_part = 0;
    hn::StoreMaskBits(U8(), hn::MaskFromVec(mask.part[b]), reinterpret_cast<std::uint8_t*>(&of_part));
    bits |= static_cast<std::uint32_t>(of_part << (b * 2 * kPartLanes));
  }
  if constexpr (kPartLanes == 16) {  // groups 0, 2, 1, 3
    bits = (bits & 0xff0000ffu) | (bits << 8 & 0xff0000u) | (bits >> 8 & 0xff00u);
  }
  return bits;
}

// Lanes 8g to 8g+7.
HWY_INLINE hn::Vec<Block8> group_of(const Words& words, std::size_t g) {
#if HWY_TARGET == HWY_AVX2
  const V8 part = hn::BitCast(U8(), words.part[g / 2]);
  return g % 2 == 0 ? hn::LowerHalf(Block8(), part) : hn::UpperHalf(Block8(), part);
#else
  return hn::BitCast(Block8(), words.part[g]);
#endif
}

// Puts the words of the lanes in `bits` on the stack whose top is `top`, in order; returns the new top.
HWY_INLINE std::uint8_t* push_words(const Words& words, std::uint32_t bits, std::uint8_t* top) {
  for (std::size_t g = 0; g < kGroups; ++g) {
    const std::uint32_t of_group = bits >> (8 * g) & 0xff;
    const auto order = hn::Load(Block8(), kLaneShuffles.compress[of_group].data());
    hn::StoreU(hn::TableLookupBytes(group_of(words, g), order), Block8(), top);
    top += 2 * std::popcount(of_group);
  }
  return top;
}

// Words from `from` on, in order, for the lanes in `bits`; 0 for the others.
HWY_INLINE Words spread_words(const std::uint8_t* from, std::uint32_t bits) {
  hn::Vec<Block8> group[kGroups];
  for (std::size_t g = 0; g < kGroups; ++g) {
    const std::uint32_t of_group = bits >> (8 * g) & 0xff;
    const auto order = hn::Load(Block8(), kLaneShuffles.expand[of_group].data());
    group[g] = hn::TableLookupBytesOr0(hn::LoadU(Block8(), from), order);
    from += 2 * std::popcount(of_group);
  }
  Words words;
  for (std::size_t p = 0; p < kParts; ++p) {
#if HWY_TARGET == HWY_AVX2
    words.part[p] = hn::BitCast(U16(), hn::Combine(U8(), group[2 * p + 1], group[2 * p]));
#else
    words.part[p] = hn::BitCast(U16(), group[p]);
#endif
  }
  return words;
}

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
