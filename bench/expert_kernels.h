// expert_kernels.h: the part of the kernels benchmark that has to do with experts, against what limits each:
// the same work in plain torch operators, memory bandwidth, the same work without skew.
#pragma once

#include <string>

#include "bench/harness.h"

namespace moesaic::bench {

void expert_kernels(Report& report, const std::string& size);

}  // namespace moesaic::bench
