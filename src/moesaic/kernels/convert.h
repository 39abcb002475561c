// convert.h: change of dtype, round to nearest even.
//
// Local. n elements, fp32 <-> bf16 (or a plain copy where the dtypes are equal). Other dtypes:
// InvalidArgument.
#pragma once

#include <cstdint>

#include "moesaic/core/device.h"
#include "moesaic/core/dtype.h"

namespace moesaic::kernels {

void convert(DType from, const void* source, DType to, void* target, std::int64_t n, Stream stream = {});

}  // namespace moesaic::kernels
