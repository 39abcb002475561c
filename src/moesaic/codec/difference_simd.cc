#include "moesaic/core/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moesaic/codec/difference_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, once per target:
#include <hwy/highway.h>

#include "moesaic/codec/reference.h"
#if HWY_TARGET != HWY_SCALAR
#include "moesaic/codec/difference_lookups.h"
#include "moesaic/codec/rans_inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace moesaic::codec::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

std::size_t EncodeDifference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                             std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                             std::span<std::uint8_t> out) {
  return reference::encode_difference(tables, reference, previous, current, out);
}

void DecodeDifference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                      std::span<const std::uint8_t> previous, std::span<const std::uint8_t> in,
                      std::span<std::uint16_t> out) {
  reference::decode_difference(tables, reference, previous, in, out);
}

#else

// in_order() of order.h.
HWY_INLINE V16 ordered(V16 words) {
  const V16 minus = hn::BitCast(U16(), hn::ShiftRight<15>(hn::BitCast(I16(), words)));
  return hn::Xor(words, hn::ShiftRight<1>(minus));
}

// The nibbles of 32 words, in the order of bytes.
HWY_INLINE Bytes load_nibbles(const std::uint8_t* previous) {
  const V8 packed = hn::LoadDup128(U8(), previous);
  Bytes nibbles;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    const auto order = hn::Load(U8(), kNibbleOrder[b + (kByteParts == 1 ? 0 : 2)].data());
    const V16 twice = hn::BitCast(U16(), hn::TableLookupBytes(packed, order));
    const V16 even = hn::And(twice, hn::Set(U16(), 0x000f));
    const V16 odd = hn::And(hn::ShiftRight<4>(twice), hn::Set(U16(), 0x0f00));
    nibbles.part[b] = hn::BitCast(U8(), hn::Or(even, odd));
  }
  return nibbles;
}

// Classes of 32 words.
template <Predictor kPredictor>
HWY_INLINE Bytes classes_of(const DifferenceLookups& lookups, const Words& reference, const Bytes& nibbles) {
  const V8 first = hn::Set(U8(), lookups.first_exponent);
  Words exponents;
  for (std::size_t p = 0; p < kParts; ++p) {
    exponents.part[p] = hn::ShiftRight<8>(hn::Add(reference.part[p], reference.part[p]));
  }
  Bytes steps = pack_small(exponents);
  for (std::size_t b = 0; b < kByteParts; ++b) {
    steps.part[b] = hn::Min(hn::SaturatedSub(steps.part[b], first),
                            hn::Set(U8(), kPredictor == Predictor::kMomentum ? 7 : 15));
  }
  if constexpr (kPredictor == Predictor::kReference) return look_up(lookups.class_of_context, steps);
  // 64 contexts: four lookups by the lower four bits, of which the upper two choose.
  Bytes contexts, by_bit4, by_bit5;
  for (std::size_t b = 0; b < kByteParts; ++b) {
    const V16 upper = hn::ShiftLeft<3>(hn::BitCast(U16(), steps.part[b]));
    const V8 context = hn::Or(hn::BitCast(U8(), upper), hn::And(nibbles.part[b], hn::Set(U8(), 7)));
    contexts.part[b] = hn::And(context, hn::Set(U8(), 15));
    by_bit4.part[b] = hn::BitCast(U8(), hn::ShiftLeft<3>(hn::BitCast(U16(), context)));
    by_bit5.part[b] = hn::BitCast(U8(), hn::ShiftLeft<2>(hn::BitCast(U16(), context)));
  }
  Bytes quarter[4];
  for (std::size_t q = 0; q < 4; ++q) quarter[q] = look_up(lookups.class_of_context + 16 * q, contexts);
  return if_negative(by_bit5, if_negative(by_bit4, quarter[3], quarter[2]),
                     if_negative(by_bit4, quarter[1], quarter[0]));
}

// Of each lane's bucket: below[b] says which lanes are below where bucket b + 1 begins.
HWY_INLINE Bytes of_bucket(const BucketBytes& table, const Bytes& classes, const Bytes* below) {
  Bytes found = look_up(table[kNumSymbols - 1], classes);
  for (std::size_t b = kNumSymbols - 1; b-- > 0;) {
    found = if_then_else(below[b], look_up(table[b], classes), found);
  }
  return found;
}

// What previous differences do to differences: (d ^ flip) + shift with sign and prediction, or the other way.
struct Fold {
  Words flip, shift;
  HWY_INLINE Fold(const Bytes& nibbles, const WordBytes& shifts)
      : flip(widen(look_up(kNegativeNibble, nibbles), look_up(kNegativeNibble, nibbles))),
        shift(widen(look_up(shifts.low, nibbles), look_up(shifts.high, nibbles))) {}
};

template <Predictor kPredictor, bool kPlain>
HWY_INLINE void encode_group(const DifferenceLookups& lookups, const std::uint16_t* reference,
                             const std::uint8_t* previous, const std::uint16_t* current, LaneVectors& lanes,
                             StreamWriter& writer) {
  const Words from = load_words(reference), to = load_words(current);
  Words value;
  for (std::size_t p = 0; p < kParts; ++p)
    value.part[p] = hn::Sub(ordered(to.part[p]), ordered(from.part[p]));
  Bytes nibbles;
  if constexpr (kPredictor == Predictor::kMomentum) {
    nibbles = load_nibbles(previous);
    const Fold fold(nibbles, kFolded);
    for (std::size_t p = 0; p < kParts; ++p) {
      value.part[p] = hn::Add(hn::Xor(value.part[p], fold.flip.part[p]), fold.shift.part[p]);
    }
  }
  Words steps;
  for (std::size_t p = 0; p < kParts; ++p) {
    const V16 minus = hn::BitCast(U16(), hn::ShiftRight<15>(hn::BitCast(I16(), value.part[p])));
    value.part[p] = hn::Xor(hn::Add(value.part[p], value.part[p]), minus);
    const V16 coarse = hn::Add(hn::ShiftRight<4>(value.part[p]), hn::Set(U16(), 120));
    steps.part[p] = hn::Min(hn::Min(value.part[p], coarse), hn::Set(U16(), kLastStep));
  }
  const Bytes classes = classes_of<kPredictor>(lookups, from, nibbles);
  Bytes step = pack_small(steps), below[kNumSymbols - 1];
  for (std::size_t s = 0; s + 1 < kNumSymbols; ++s) {
    const Bytes first = look_up(lookups.first_step[s], classes);
    for (std::size_t b = 0; b < kByteParts; ++b) {
      const auto biased = hn::BitCast(I8(), hn::Xor(step.part[b], hn::Set(U8(), 0x80)));
      below[s].part[b] =
          hn::BitCast(U8(), hn::VecFromMask(I8(), hn::Gt(hn::BitCast(I8(), first.part[b]), biased)));
    }
  }
  Words place =
      widen(of_bucket(lookups.place_low, classes, below), of_bucket(lookups.place_high, classes, below));
  const Words frequency = widen(of_bucket(lookups.frequency_low, classes, below),
                                of_bucket(lookups.frequency_high, classes, below));
  const Bytes width_log2 = of_bucket(lookups.width_log2, classes, below);
  const Words width = widen(look_up(kWidth.low, width_log2), look_up(kWidth.high, width_log2));
  const std::uint32_t escapes = ~bits_of(below[kNumSymbols - 2]);
  if (escapes != 0) {
    writer.literals = push_words(value, escapes, writer.literals);
    const Words inside = widen(below[kNumSymbols - 2], below[kNumSymbols - 2]);
    for (std::size_t p = 0; p < kParts; ++p) value.part[p] = hn::And(value.part[p], inside.part[p]);
  }
  for (std::size_t p = 0; p < kParts; ++p) place.part[p] = hn::Add(place.part[p], value.part[p]);
  writer.halves = push<kPlain>(lanes, place, frequency, width, writer.halves);
}

template <Predictor kPredictor>
HWY_INLINE void decode_group(const DifferenceLookups& lookups, const std::uint16_t* reference,
                             const std::uint8_t* previous, LaneVectors& lanes, StreamReader& reader,
                             std::uint16_t* out) {
  const Words from = load_words(reference);
  Bytes nibbles;
  if constexpr (kPredictor == Predictor::kMomentum) nibbles = load_nibbles(previous);
  const Bytes classes = classes_of<kPredictor>(lookups, from, nibbles);
  // Starts and slots are biased by 0x8000: comparison is of signed words.
  Words slot, start, under[kNumSymbols - 1];
  for (std::size_t p = 0; p < kParts; ++p) slot.part[p] = hn::Xor(lanes.low.part[p], hn::Set(U16(), 0x8000));
  Bytes below[kNumSymbols - 1];
  for (std::size_t s = kNumSymbols - 1; s-- > 0;) {
    const Words first =
        widen(look_up(lookups.start_low[s + 1], classes), look_up(lookups.biased_start_high[s + 1], classes));
    for (std::size_t p = 0; p < kParts; ++p) {
      const auto mask = hn::Gt(hn::BitCast(I16(), first.part[p]), hn::BitCast(I16(), slot.part[p]));
      under[s].part[p] = hn::BitCast(U16(), hn::VecFromMask(I16(), mask));
      const V16 above = first.part[p];
      if (s == kNumSymbols - 2) {
        start.part[p] = above;
      } else {
        start.part[p] = hn::IfThenElse(hn::MaskFromVec(under[s + 1].part[p]), above, start.part[p]);
      }
    }
    for (std::size_t b = 0; b < kByteParts; ++b) {
      below[s].part[b] = pack_mask(under[s].part[2 * b], under[s].part[2 * b + 1]);
    }
  }
  const Words frequency = widen(of_bucket(lookups.frequency_low, classes, below),
                                of_bucket(lookups.frequency_high, classes, below));
  const Bytes width_log2 = of_bucket(lookups.width_log2, classes, below);
  const Words base =
      widen(of_bucket(lookups.base_low, classes, below), of_bucket(lookups.base_high, classes, below));
  const Words inverse =
      widen(look_up(kInverseWidth.low, width_log2), look_up(kInverseWidth.high, width_log2));
  const Words raw_bits = widen(look_up(kRawBits.low, width_log2), look_up(kRawBits.high, width_log2));
  Words value, rest;
  for (std::size_t p = 0; p < kParts; ++p) {
    const V16 first =
        hn::IfThenElse(hn::MaskFromVec(under[0].part[p]), hn::Set(U16(), 0x8000), start.part[p]);
    const V16 offset = hn::Sub(slot.part[p], first);
    // offset >> width_log2; a shift by 0 has no factor of 16 bits.
    const auto narrow = hn::VecFromMask(U16(), hn::Eq(inverse.part[p], hn::Zero(U16())));
    rest.part[p] = hn::Or(hn::MulHigh(offset, inverse.part[p]), hn::And(offset, narrow));
    value.part[p] = hn::Add(base.part[p], hn::And(offset, raw_bits.part[p]));
  }
  pop(lanes, frequency, rest, reader);
  const std::uint32_t escapes = ~bits_of(below[kNumSymbols - 2]);
  if (escapes != 0) {
    const std::size_t bytes = 2 * static_cast<std::size_t>(std::popcount(escapes));
    reader.check_literals(bytes);
    reader.literals -= bytes;
    const Words literals = spread_words(reader.literals, escapes);
    for (std::size_t p = 0; p < kParts; ++p) value.part[p] = hn::Or(value.part[p], literals.part[p]);
  }
  // An escape's bucket has base and raw value 0.
  Words word;
  if constexpr (kPredictor == Predictor::kMomentum) {
    const Fold fold(nibbles, kUnfolded);
    for (std::size_t p = 0; p < kParts; ++p) {
      const V16 odd = hn::And(hn::Xor(value.part[p], fold.flip.part[p]), hn::Set(U16(), 1));
      const V16 difference = hn::Xor(hn::ShiftRight<1>(value.part[p]), hn::Sub(hn::Zero(U16()), odd));
      word.part[p] = hn::Add(difference, fold.shift.part[p]);
    }
  } else {
    for (std::size_t p = 0; p < kParts; ++p) {
      const V16 odd = hn::And(value.part[p], hn::Set(U16(), 1));
      word.part[p] = hn::Xor(hn::ShiftRight<1>(value.part[p]), hn::Sub(hn::Zero(U16()), odd));
    }
  }
  for (std::size_t p = 0; p < kParts; ++p) {
    word.part[p] = ordered(hn::Add(ordered(from.part[p]), word.part[p]));
  }
  store_words(word, out);
}

// Of the word at `begin`, an even one; kReference has none.
HWY_INLINE const std::uint8_t* nibbles_from(std::span<const std::uint8_t> previous, std::size_t begin) {
  return previous.empty() ? nullptr : previous.data() + begin / 2;
}

template <Predictor kPredictor, bool kPlain>
std::size_t encode(const DifferenceTables& tables, const DifferenceLookups& lookups,
                   std::span<const std::uint16_t> reference, std::span<const std::uint8_t> previous,
                   std::span<const std::uint16_t> current, std::span<std::uint8_t> out) {
  StreamWriter writer(out, current.size());
  std::size_t begin = current.size() / kLanes * kLanes;
  if (begin < current.size()) {
    reference::encode_difference_group(tables, reference, previous, current, begin, writer);
  }
  LaneVectors lanes(writer.lanes);
  while (begin > 0) {
    begin -= kLanes;
    encode_group<kPredictor, kPlain>(lookups, reference.data() + begin, nibbles_from(previous, begin),
                                     current.data() + begin, lanes, writer);
  }
  lanes.store(writer.lanes);
  return writer.finish();
}

template <Predictor kPredictor>
void decode(const DifferenceTables& tables, const DifferenceLookups& lookups,
            std::span<const std::uint16_t> reference, std::span<const std::uint8_t> previous,
            std::span<const std::uint8_t> in, std::span<std::uint16_t> out) {
  StreamReader reader(in, out.size());
  LaneVectors lanes(reader.lanes);
  std::size_t begin = 0;
  for (; begin + kLanes <= out.size(); begin += kLanes) {
    decode_group<kPredictor>(lookups, reference.data() + begin, nibbles_from(previous, begin), lanes, reader,
                             out.data() + begin);
  }
  lanes.store(reader.lanes);
  if (begin < out.size()) reference::decode_difference_group(tables, reference, previous, begin, reader, out);
  reader.finish();
}

std::size_t EncodeDifference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                             std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                             std::span<std::uint8_t> out) {
  const DifferenceLookups lookups(tables);
  const bool plain = lookups.max_frequency <= kMaxPlainFrequency;
  const auto run = [&]<Predictor kPredictor>() {
    return plain ? encode<kPredictor, true>(tables, lookups, reference, previous, current, out)
                 : encode<kPredictor, false>(tables, lookups, reference, previous, current, out);
  };
  return tables.predictor() == Predictor::kMomentum ? run.template operator()<Predictor::kMomentum>()
                                                    : run.template operator()<Predictor::kReference>();
}

void DecodeDifference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                      std::span<const std::uint8_t> previous, std::span<const std::uint8_t> in,
                      std::span<std::uint16_t> out) {
  const DifferenceLookups lookups(tables);
  if (tables.predictor() == Predictor::kMomentum) {
    decode<Predictor::kMomentum>(tables, lookups, reference, previous, in, out);
  } else {
    decode<Predictor::kReference>(tables, lookups, reference, previous, in, out);
  }
}

#endif

}  // namespace moesaic::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "moesaic/codec/corrupt.h"

namespace moesaic::codec {
namespace {

void require_stream(const DifferenceTables& tables, std::size_t reference, std::size_t previous,
                    std::size_t words) {
  require(words <= kMaxStreamWords, "difference stream: got {} words, expected {} at most", words,
          kMaxStreamWords);
  require(reference == words, "difference stream: got {} words against a reference of {}", words, reference);
  const std::size_t wanted = tables.predictor() == Predictor::kMomentum ? previous_bytes(words) : 0;
  require(previous == wanted, "difference stream: got {} bytes of previous differences, expected {}",
          previous, wanted);
}

}  // namespace

HWY_EXPORT(EncodeDifference);
HWY_EXPORT(DecodeDifference);

std::size_t encoded_bound(std::size_t words) {
  return words == 0 ? 0 : StreamWriter::bound(words, sizeof(std::uint16_t));
}

std::size_t encode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                              std::span<const std::uint8_t> previous, std::span<const std::uint16_t> current,
                              std::span<std::uint8_t> out) {
  require_stream(tables, reference.size(), previous.size(), current.size());
  require(out.size() >= encoded_bound(current.size()),
          "difference stream: got room for {} bytes, expected {}", out.size(), encoded_bound(current.size()));
  if (current.empty()) return 0;
  return HWY_DYNAMIC_DISPATCH(EncodeDifference)(tables, reference, previous, current, out);
}

void decode_difference(const DifferenceTables& tables, std::span<const std::uint16_t> reference,
                       std::span<const std::uint8_t> previous, std::span<const std::uint8_t> in,
                       std::span<std::uint16_t> out) {
  require_stream(tables, reference.size(), previous.size(), out.size());
  check_bytes(!out.empty() || in.empty(), "difference stream: got {} bytes for no words", in.size());
  if (out.empty()) return;
  HWY_DYNAMIC_DISPATCH(DecodeDifference)(tables, reference, previous, in, out);
}

}  // namespace moesaic::codec
#endif  // HWY_ONCE
