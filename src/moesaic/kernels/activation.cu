#include "moesaic/core/launch.cuh"
#include "moesaic/kernels/activation_device.h"
#include "moesaic/kernels/cuda.h"
#include "moesaic/kernels/row_dtype.cuh"

namespace moesaic::kernels {

void cuda::swiglu(DType dtype, const void* in, std::int64_t rows, std::int64_t width, void* h,
                  Stream stream) {
  const auto run = [&](auto element, auto elements) {
    using T = decltype(element);
    const SwigluPack<T, elements()> task = {static_cast<const T*>(in), width, static_cast<T*>(h)};
    launch_threads("swiglu", stream, rows * (width / elements()), task);
  };
  for_packs(dtype, "swiglu", run, width, in, h);
}

void cuda::swiglu_backward(DType dtype, const void* in, const void* dh, std::int64_t rows, std::int64_t width,
                           void* din, Stream stream) {
  const auto run = [&](auto element, auto elements) {
    using T = decltype(element);
    const SwigluBackwardPack<T, elements()> task = {static_cast<const T*>(in), static_cast<const T*>(dh),
                                                    width, static_cast<T*>(din)};
    launch_threads("swiglu_backward", stream, rows * (width / elements()), task);
  };
  for_packs(dtype, "swiglu_backward", run, width, in, dh, din);
}

}  // namespace moesaic::kernels
