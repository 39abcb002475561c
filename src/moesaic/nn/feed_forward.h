// feed_forward.h: the dense feed-forward of a dense layer, and the shared experts of an MoE layer.
//
// Local. x [..., D] -> [..., D]; F width.
//   SwiGLU: unit = gate [F,D], up [F,D], down [D,F]; y = (silu(x gate^T) * (x up^T)) down^T.   (Shazeer 2020)
//   ReLU:   unit = up [F,D], down [D,F];             y = max(x up^T, 0) down^T.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "moesaic/nn/model_config.h"

namespace moesaic {

at::Tensor feed_forward(const ModelConfig& config, std::int64_t width, std::span<const at::Tensor> unit,
                        const at::Tensor& x);

}  // namespace moesaic
