// benchmarks.h: every benchmark, one file each; main.cc lists them.
#pragma once

#include "bench/harness.h"

namespace moesaic::bench {

Benchmark kernels();

}  // namespace moesaic::bench
