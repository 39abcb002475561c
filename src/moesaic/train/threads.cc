#include "moesaic/train/threads.h"

#include <ATen/Parallel.h>

namespace moesaic {

void limit_compute_threads(int threads) { at::set_num_threads(threads); }

}  // namespace moesaic
