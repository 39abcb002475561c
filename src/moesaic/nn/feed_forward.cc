#include "moesaic/nn/feed_forward.h"

#include "moesaic/core/error.h"
#include "moesaic/nn/checks.h"
#include "moesaic/nn/products.h"

namespace moesaic {

at::Tensor feed_forward(const ModelConfig& config, std::int64_t width, std::span<const at::Tensor> unit,
                        const at::Tensor& x) {
  const bool gated = config.activation == Activation::kSwiGlu;
  const std::size_t expected = gated ? 3 : 2;
  require(unit.size() == expected, "feed-forward unit: expected {} tensors, got {}", expected, unit.size());
  const at::Tensor &up = unit[expected - 2], &down = unit[expected - 1];
  require_shape("up_proj", up, {width, config.d_model});
  require_shape("down_proj", down, {config.d_model, width});
  if (!gated) return project(at::relu(project(x, up)), down);
  require_shape("gate_proj", unit[0], {width, config.d_model});
  return project(at::silu(project(x, unit[0])) * project(x, up), down);
}

}  // namespace moesaic
