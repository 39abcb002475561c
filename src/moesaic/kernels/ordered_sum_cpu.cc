#include "moesaic/kernels/element.h"
#include "moesaic/kernels/ordered_sum.h"
#include "moesaic/kernels/reference.h"

namespace moesaic::kernels {

void reference::ordered_weighted_sum(DType dtype, const void* y, const std::int64_t* slot_begin,
                                     const std::int64_t* position_of_slot, const float* weight,
                                     std::int64_t num_rows, std::int64_t width, DType result, void* out) {
  for_row_and_result_dtype(dtype, result, "ordered_weighted_sum", [&](auto element, auto of_result) {
    using T = decltype(element);
    using Result = decltype(of_result);
    const T* rows = static_cast<const T*>(y);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      for (std::int64_t d = 0; d < width; ++d) {
        float sum = 0;
        for (std::int64_t s = slot_begin[i]; s < slot_begin[i + 1]; ++s) {
          const float value = load(rows[position_of_slot[s] * width + d]);
          sum += weight ? weight[s] * value : value;
        }
        store(static_cast<Result*>(out)[i * width + d], sum);
      }
    }
  });
}

void reference::slot_dots(DType dtype, const void* a, const void* y, const std::int64_t* slot_begin,
                          const std::int64_t* position_of_slot, std::int64_t num_rows, std::int64_t width,
                          float* dot) {
  for_row_dtype(dtype, "slot_dots", [&](auto element) {
    using T = decltype(element);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const T* left = static_cast<const T*>(a) + i * width;
      for (std::int64_t s = slot_begin[i]; s < slot_begin[i + 1]; ++s) {
        const T* right = static_cast<const T*>(y) + position_of_slot[s] * width;
        float partial[16] = {};
        for (std::int64_t d = 0; d < width; ++d) partial[d % 16] += load(left[d]) * load(right[d]);
        for (const int step : {8, 4, 2, 1}) {
          for (int j = 0; j < step; ++j) partial[j] += partial[j + step];
        }
        dot[s] = partial[0];
      }
    }
  });
}

}  // namespace moesaic::kernels
