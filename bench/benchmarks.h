// benchmarks.h: every benchmark, one file each; main.cc lists them.
#pragma once

#include "bench/harness.h"

namespace moesaic::bench {

Benchmark collectives();
Benchmark kernels();
Benchmark moe_layer();
Benchmark train_tokens(const std::string& python);  // which runs the peer

}  // namespace moesaic::bench
