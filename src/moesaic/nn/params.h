// params.h: first values of the parameters.
//
// Local. An element is a pure function of (seed, tensor name, element index), so every layout starts from the
// same model and a rank draws only its own shard. Normal(0, init_std) for every matrix, output projections
// included (as Hugging Face does); norms start at one.
#pragma once

#include <cstdint>

#include "moesaic/nn/model_config.h"

namespace moesaic {

// Elements [begin, end) of the tensor, row-major, into out[0..end-begin). InvalidArgument if they lie outside
// it.
void initialise(const TensorSpec& spec, std::uint64_t seed, std::int64_t begin, std::int64_t end, float* out);

}  // namespace moesaic
