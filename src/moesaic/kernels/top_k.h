// top_k.h: the k largest of each row, in descending order; ties go to the lowest index.
//
// Local. scores [rows, n] fp32, none NaN; ids and values [rows, k], 1 <= k <= n, else InvalidArgument.
// Cost: one pass over scores up to k = 8; beyond, a selection from each row and a sort of what it gives.
// Source: none (the tie rule is the design's; library top-k gives other orders).
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"

namespace moesaic::kernels {

void top_k(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* ids,
           float* values, Stream stream = {});

}  // namespace moesaic::kernels
