// ordered_sum_device.h: ordered_sum.h in tasks.
#pragma once

#include <cstdint>

#include "moesaic/core/device_code.h"
#include "moesaic/kernels/row_element.h"

namespace moesaic::kernels {

// One pack of one row, summed over the row's slots, ascending; tasks as in PermutePack. A slot without a
// position adds nothing.
template <class T, int kElements>
struct OrderedSumPack {
  const T* y;
  const std::int64_t* slot_begin;
  const std::int64_t* position_of_slot;
  const float* weight;
  std::int64_t width;
  T* out;

  MOESAIC_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t packs = width / kElements, row = i / packs, d = i % packs * kElements;
    float sum[kElements] = {};
    for (std::int64_t s = slot_begin[row]; s < slot_begin[row + 1]; ++s) {
      if (position_of_slot[s] < 0) continue;
      const auto from = load_pack<T, kElements>(y + position_of_slot[s] * width + d);
      for (int j = 0; j < kElements; ++j) {
        const float value = widened(from.at[j]);
        sum[j] += weight ? weight[s] * value : value;
      }
    }
    Pack<T, kElements> result;
    for (int j = 0; j < kElements; ++j) round_into(result.at[j], sum[j]);
    store_pack<T, kElements>(out + row * width + d, result);
  }
};

// The dots of one row's slots, two at a time: 16 lanes hold the 16 partial sums of one.
template <class T>
struct SlotDotsOfRow {
  static constexpr unsigned kPartials = 16;

  const T* a;
  const T* y;
  const std::int64_t* slot_begin;
  const std::int64_t* position_of_slot;
  std::int64_t width;
  float* dot;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t row) const {
    const T* left = a + row * width;
    for (std::int64_t begin = slot_begin[row]; begin < slot_begin[row + 1]; begin += 2) {
      Each<Warp, float> partial;
      warp.each([&](unsigned lane) {
        partial[lane] = 0;
        const std::int64_t s = begin + lane / kPartials;
        if (s >= slot_begin[row + 1] || position_of_slot[s] < 0) return;
        const T* right = y + position_of_slot[s] * width;
        for (std::int64_t d = lane % kPartials; d < width; d += kPartials) {
          partial[lane] += widened(left[d]) * widened(right[d]);
        }
      });
      for (unsigned step = kPartials / 2; step > 0; step /= 2) {
        const auto other = warp.shuffle(partial, [step](unsigned lane) { return lane ^ step; });
        warp.each([&](unsigned lane) { partial[lane] += other[lane]; });  // that of the lower lane counts
      }
      warp.each([&](unsigned lane) {
        const std::int64_t s = begin + lane / kPartials;
        if (lane % kPartials == 0 && s < slot_begin[row + 1]) dot[s] = partial[lane];
      });
    }
  }
};

}  // namespace moesaic::kernels
