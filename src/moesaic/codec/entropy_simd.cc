#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/codec/entropy_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/highway.h>

#include "moesaic/codec/reference.h"
#if HWY_TARGET != HWY_SCALAR
#include "moesaic/codec/rans_inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

std::size_t EncodeEntropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                          std::span<std::uint8_t> out) {
  return reference::encode_entropy(tables, words, out);
}

void DecodeEntropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                   std::span<std::uint16_t> out) {
  reference::decode_entropy(tables, in, out);
}

#else

static_assert(EntropyTables::kNumSymbols == 16, "a symbol is an index into 16 bytes");

struct EntropyLookups {
  alignas(16) std::uint8_t start_low[16], start_high[16], frequency_low[16],
      frequency_high[16], exponent[16] = {};
  std::uint8_t first_exponent;
  bool plain = true;

  explicit EntropyLookups(const EntropyTables& tables)
      : first_exponent(static_cast<std::uint8_t>(tables.first_exponent())) {
    for (int s = 0; s < EntropyTables::kNumSymbols; ++s) {
      const std::uint32_t start = tables.start(s), frequency = tables.frequency()[s];
      start_low[s] = static_cast<std::uint8_t>(start);
      start_high[s] = static_cast<std::uint8_t>(start >> 8);
      frequency_low[s] = static_cast<std::uint8_t>(frequency);
      frequency_high[s] = static_cast<std::uint8_t>(frequency >> 8);
      if (s != EntropyTables::kEscape) exponent[s] = static_cast<std::uint8_t>(tables.exponent_of(s));
      plain = plain && frequency <= kMaxPlainFrequency;
    }
  }
};

HWY_INLINE std::uint32_t escapes_of(const Bytes& symbols) {
  Bytes escapes;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    escapes.part[b] = hn::VecFromMask(U8(), hn::Eq(symbols.part[b], hn::Set(U8(), EntropyTables::kEscape)));
  }
  return bits_of(escapes);
}

template <bool kPlain>
HWY_INLINE void encode_group(const EntropyLookups& lookups, const std::uint16_t* words, std::uint8_t* plane,
                             LaneVectors& lanes, StreamWriter& writer) {
  const Words from = load_words(words);
  Words exponents, others, one;
  for (std::size_t p = 0; p < kParts; ++p) {
    exponents.part[p] = hn::ShiftRight<8>(hn::Add(from.part[p], from.part[p]));
    others.part[p] = hn::Or(hn::And(hn::ShiftRight<8>(from.part[p]), hn::Set(U16(), 0x80)),
                            hn::And(from.part[p], hn::Set(U16(), 0x7f)));
    one.part[p] = hn::Set(U16(), 1);
  }
  store_bytes(pack_small(others), plane);
  Bytes symbols = pack_small(exponents);
  for (std::size_t b = 0; b < kByteParts; ++b) {
    const V8 place = hn::Sub(symbols.part[b], hn::Set(U8(), lookups.first_exponent));
    const auto inside = hn::Eq(hn::Min(place, hn::Set(U8(), EntropyTables::kWindow - 1)), place);
    const V8 zero = hn::VecFromMask(U8(), hn::Eq(symbols.part[b], hn::Zero(U8())));
    // kEscape - 1 is kZeroSymbol.
    symbols.part[b] = hn::IfThenElse(inside, place, hn::Add(hn::Set(U8(), EntropyTables::kEscape), zero));
  }
  for (std::uint32_t left = escapes_of(symbols); left != 0; left &= left - 1) {
    *writer.literals++ = static_cast<std::uint8_t>(words[std::countr_zero(left)] >> 7);
  }
  const Words start = widen(look_up(lookups.start_low, symbols), look_up(lookups.start_high, symbols));
  const Words frequency =
      widen(look_up(lookups.frequency_low, symbols), look_up(lookups.frequency_high, symbols));
  writer.halves = push<kPlain>(lanes, start, frequency, one, writer.halves);
}

HWY_INLINE void decode_group(const EntropyLookups& lookups, const std::int16_t* biased_starts,
                             const std::uint8_t* plane, LaneVectors& lanes, StreamReader& reader,
                             std::uint16_t* out) {
  Words symbol_words, rest;
  for (std::size_t p = 0; p < kParts; ++p) {
    const auto slot = hn::BitCast(I16(), hn::Xor(lanes.low.part[p], hn::Set(U16(), 0x8000)));
    auto symbol = hn::Set(I16(), EntropyTables::kEscape);
    for (int s = 1; s < EntropyTables::kNumSymbols; ++s) {
      symbol = hn::Add(symbol, hn::VecFromMask(I16(), hn::Gt(hn::Set(I16(), biased_starts[s]), slot)));
    }
    symbol_words.part[p] = hn::BitCast(U16(), symbol);
  }
  const Bytes symbols = pack_small(symbol_words);
  const Words start = widen(look_up(lookups.start_low, symbols), look_up(lookups.start_high, symbols));
  const Words frequency =
      widen(look_up(lookups.frequency_low, symbols), look_up(lookups.frequency_high, symbols));
  for (std::size_t p = 0; p < kParts; ++p) rest.part[p] = hn::Sub(lanes.low.part[p], start.part[p]);
  pop(lanes, frequency, rest, reader);
  const Bytes exponents = look_up(lookups.exponent, symbols), others = load_bytes(plane);
  Bytes low, high;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    const V16 exponent = hn::BitCast(U16(), exponents.part[b]);
    const V8 top = hn::Set(U8(), 0x80), lower = hn::Set(U8(), 0x7f);
    low.part[b] =
        hn::Or(hn::And(others.part[b], lower), hn::And(hn::BitCast(U8(), hn::ShiftLeft<7>(exponent)), top));
    high.part[b] =
        hn::Or(hn::And(others.part[b], top), hn::And(hn::BitCast(U8(), hn::ShiftRight<1>(exponent)), lower));
  }
  store_words(widen(low, high), out);
  for (std::uint32_t left = escapes_of(symbols); left != 0;) {
    const int lane = 31 - std::countl_zero(left);
    left ^= 1u << lane;
    reader.check_literals(1);
    out[lane] = static_cast<std::uint16_t>(out[lane] | *--reader.literals << 7);
  }
}

template <bool kPlain>
std::size_t encode(const EntropyTables& tables, const EntropyLookups& lookups,
                   std::span<const std::uint16_t> words, std::span<std::uint8_t> out) {
  StreamWriter writer(out.subspan(words.size()), words.size());
  std::size_t begin = words.size() / kLanes * kLanes;
  if (begin < words.size()) reference::encode_entropy_group(tables, words, begin, out.data(), writer);
  LaneVectors lanes(writer.lanes);
  while (begin > 0) {
    begin -= kLanes;
    encode_group<kPlain>(lookups, words.data() + begin, out.data() + begin, lanes, writer);
  }
  lanes.store(writer.lanes);
  return words.size() + writer.finish();
}

std::size_t EncodeEntropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                          std::span<std::uint8_t> out) {
  const EntropyLookups lookups(tables);
  return lookups.plain ? encode<true>(tables, lookups, words, out)
                       : encode<false>(tables, lookups, words, out);
}

void DecodeEntropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                   std::span<std::uint16_t> out) {
  const EntropyLookups lookups(tables);
  std::int16_t biased_starts[EntropyTables::kNumSymbols];
  for (int s = 0; s < EntropyTables::kNumSymbols; ++s) {
    biased_starts[s] = static_cast<std::int16_t>(tables.start(s) ^ 0x8000);
  }
  StreamReader reader(in.subspan(out.size()), out.size());
  LaneVectors lanes(reader.lanes);
  std::size_t begin = 0;
  for (; begin + kLanes <= out.size(); begin += kLanes) {
    decode_group(lookups, biased_starts, in.data() + begin, lanes, reader, out.data() + begin);
  }
  lanes.store(reader.lanes);
  if (begin < out.size()) reference::decode_entropy_group(tables, in.data(), begin, reader, out);
  reader.finish();
}

#endif

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "moesaic/codec/corrupt.h"
#include "moesaic/codec/difference.h"

namespace moesaic::codec {

HWY_EXPORT(EncodeEntropy);
HWY_EXPORT(DecodeEntropy);

std::size_t entropy_bound(std::size_t words) {
  return words == 0 ? 0 : words + StreamWriter::bound(words, 1);
}

std::size_t encode_entropy(const EntropyTables& tables, std::span<const std::uint16_t> words,
                           std::span<std::uint8_t> out) {
  require(words.size() <= kMaxStreamWords, "entropy stream: got {} words, expected {} at most", words.size(),
          kMaxStreamWords);
  require(out.size() >= entropy_bound(words.size()), "entropy stream: got room for {} bytes, expected {}",
          out.size(), entropy_bound(words.size()));
  if (words.empty()) return 0;
  return HWY_DYNAMIC_DISPATCH(EncodeEntropy)(tables, words, out);
}

void decode_entropy(const EntropyTables& tables, std::span<const std::uint8_t> in,
                    std::span<std::uint16_t> out) {
  require(out.size() <= kMaxStreamWords, "entropy stream: got {} words, expected {} at most", out.size(),
          kMaxStreamWords);
  check_bytes(!out.empty() || in.empty(), "entropy stream: got {} bytes for no words", in.size());
  if (out.empty()) return;
  check_bytes(in.size() >= out.size(), "entropy stream: got {} bytes, expected {} or more", in.size(),
              out.size());
  HWY_DYNAMIC_DISPATCH(DecodeEntropy)(tables, in, out);
}

}  // namespace moesaic::codec
#endif  // HWY_ONCE
