// activation_device.h: SwiGLU and its backward of one pack of elements.
//
// Task i: pack i % (width / kElements) of row i / (width / kElements).
#pragma once

#include <cmath>
#include <cstdint>

#include "moesaic/core/device_code.h"
#include "moesaic/kernels/row_element.h"

namespace moesaic::kernels {

template <class T, int kElements>
struct SwigluPack {
  const T* in;
  std::int64_t width;
  T* h;

  MOESAIC_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t packs = width / kElements, row = i / packs, f = i % packs * kElements;
    const T* from = in + row * 2 * width + f;
    const auto gates = load_pack<T, kElements>(from), ups = load_pack<T, kElements>(from + width);
    Pack<T, kElements> result;
    for (int j = 0; j < kElements; ++j) {
      const float gate = widened(gates.at[j]);
      round_into(result.at[j], gate / (1 + std::exp(-gate)) * widened(ups.at[j]));
    }
    store_pack<T, kElements>(h + row * width + f, result);
  }
};

template <class T, int kElements>
struct SwigluBackwardPack {
  const T* in;
  const T* dh;
  std::int64_t width;
  T* din;

  MOESAIC_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t packs = width / kElements, row = i / packs, f = i % packs * kElements;
    const T* from = in + row * 2 * width + f;
    const auto gates = load_pack<T, kElements>(from), ups = load_pack<T, kElements>(from + width);
    const auto grads = load_pack<T, kElements>(dh + row * width + f);
    Pack<T, kElements> dgates, dups;
    for (int j = 0; j < kElements; ++j) {
      const float gate = widened(gates.at[j]), grad = widened(grads.at[j]);
      const float sigmoid = 1 / (1 + std::exp(-gate));
      round_into(dgates.at[j], grad * widened(ups.at[j]) * (sigmoid * (1 + gate * (1 - sigmoid))));
      round_into(dups.at[j], grad * (gate * sigmoid));
    }
    T* to = din + row * 2 * width + f;
    store_pack<T, kElements>(to, dgates);
    store_pack<T, kElements>(to + width, dups);
  }
};

}  // namespace moesaic::kernels
