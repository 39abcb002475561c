#include <string>

#include "moesaic/core/launch.cuh"
#include "moesaic/kernels/cuda.h"
#include "moesaic/kernels/top_k_device.h"

namespace moesaic::kernels {

void cuda::top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
                 float* values, Stream stream) {
  if (k < 1 || k > n) {
    throw_invalid_argument("top_k", "k = " + std::to_string(k), "1 <= k <= n = " + std::to_string(n));
  }
  launch_warps("top_k", stream, rows, TopKOfRow{scores, n, k, ids, values});
}

}  // namespace moesaic::kernels
