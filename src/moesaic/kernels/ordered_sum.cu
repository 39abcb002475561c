#include "moesaic/core/launch.cuh"
#include "moesaic/kernels/cuda.h"
#include "moesaic/kernels/ordered_sum_device.h"
#include "moesaic/kernels/row_dtype.cuh"

namespace moesaic::kernels {

void cuda::ordered_weighted_sum(DType dtype, const void* y, const std::int64_t* slot_begin,
                                const std::int64_t* position_of_slot, const float* weight,
                                std::int64_t num_rows, std::int64_t width, void* out, Stream stream) {
  const auto run = [&](auto element, auto elements) {
    using T = decltype(element);
    const OrderedSumPack<T, elements()> task = {
        static_cast<const T*>(y), slot_begin, position_of_slot, weight, width, static_cast<T*>(out)};
    launch_threads("ordered_weighted_sum", stream, num_rows * (width / elements()), task);
  };
  for_packs(dtype, "ordered_weighted_sum", run, width, y, out);
}

void cuda::slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
                     const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                     float* dot, Stream stream) {
  for_row_dtype(dtype, "slot_dots", [&](auto element) {
    using T = decltype(element);
    const SlotDotsOfRow<T> task = {
        static_cast<const T*>(a), static_cast<const T*>(y), slot_begin, position_of_slot, width, dot};
    launch_warps("slot_dots", stream, num_rows, task);
  });
}

}  // namespace moesaic::kernels
