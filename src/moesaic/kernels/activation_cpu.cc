#include <cmath>

#include "moesaic/kernels/activation.h"
#include "moesaic/kernels/element.h"
#include "moesaic/kernels/reference.h"

namespace moesaic::kernels {

void reference::swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h) {
  for_row_dtype(dtype, "swiglu", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t p = 0; p < rows; ++p) {
      const T* gates = static_cast<const T*>(in) + p * 2 * width;
      const T* ups = gates + width;
      for (std::int64_t f = 0; f < width; ++f) {
        const float gate = load(gates[f]);
        const float silu = gate / (1 + std::exp(-gate));
        store(static_cast<T*>(h)[p * width + f], silu * load(ups[f]));
      }
    }
  });
}

void reference::swiglu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows,
                                std::int64_t width, void* din) {
  for_row_dtype(dtype, "swiglu_backward", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t p = 0; p < rows; ++p) {
      const T* gates = static_cast<const T*>(in) + p * 2 * width;
      const T* ups = gates + width;
      T* dgates = static_cast<T*>(din) + p * 2 * width;
      T* dups = dgates + width;
      for (std::int64_t f = 0; f < width; ++f) {
        const float gate = load(gates[f]);
        const float grad = load(static_cast<const T*>(dh)[p * width + f]);
        const float sigmoid = 1 / (1 + std::exp(-gate));
        store(dgates[f], grad * load(ups[f]) * (sigmoid * (1 + gate * (1 - sigmoid))));
        store(dups[f], grad * (gate * sigmoid));
      }
    }
  });
}

void reference::relu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h) {
  for_row_dtype(dtype, "relu", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < rows * width; ++i) {
      const float value = load(static_cast<const T*>(in)[i]);
      store(static_cast<T*>(h)[i], value <= 0 ? 0 : value);  // a NaN passes through
    }
  });
}

void reference::relu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows,
                              std::int64_t width, void* din) {
  for_row_dtype(dtype, "relu_backward", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < rows * width; ++i) {
      const float grad = load(static_cast<const T*>(dh)[i]);
      store(static_cast<T*>(din)[i], load(static_cast<const T*>(in)[i]) <= 0 ? 0 : grad);
    }
  });
}

}  // namespace moesaic::kernels
