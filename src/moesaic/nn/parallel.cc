#include "moesaic/nn/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace moesaic {

void run_tasks(std::int64_t n, const std::function<void(std::int64_t)>& task) {
  const int threads = static_cast<int>(std::min<std::int64_t>(n, omp_get_max_threads()));
  std::atomic<std::int64_t> next{0};
  std::atomic_flag failed;
  std::exception_ptr error;
#pragma omp parallel num_threads(std::max(threads, 1)) if (threads > 1)
  {
    // Nothing may leave a parallel region.
    try {
      for (std::int64_t i = next++; i < n; i = next++) task(i);
    } catch (...) {
      next = n;
      if (!failed.test_and_set()) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace moesaic
