#include <algorithm>
#include <numeric>
#include <vector>

#include "moesaic/core/error.h"
#include "moesaic/kernels/reference.h"
#include "moesaic/kernels/top_k.h"

namespace moesaic::kernels {

void reference::top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k,
                      std::int32_t* ids, float* values) {
  require(1 <= k && k <= n, "top_k: got k = {}, expected 1 <= k <= n = {}", k, n);
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * n;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [row](auto a, auto b) { return row[a] > row[b]; });
    for (std::int64_t j = 0; j < k; ++j) {
      ids[r * k + j] = order[j];
      values[r * k + j] = row[order[j]];
    }
  }
}

}  // namespace moesaic::kernels
