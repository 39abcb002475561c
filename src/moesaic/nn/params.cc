#include "moesaic/nn/params.h"

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"

namespace moesaic {

void initialise(const TensorSpec& spec, std::uint64_t seed, std::int64_t begin, std::int64_t end,
                float* out) {
  require(0 <= begin && begin <= end && end <= spec.numel(), "{}: elements [{}, {}) asked of a tensor of {}",
          spec.name, begin, end, spec.numel());
  if (spec.init != Init::kNormal) {
    std::fill(out, out + (end - begin), spec.init == Init::kOnes ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t key = random_key(seed, "init " + spec.name);
  const auto std_dev = static_cast<float>(spec.init_std);
  for (std::int64_t i = begin; i < end; ++i) {
    out[i - begin] = std_dev * random_normal(key, static_cast<std::uint64_t>(i));
  }
}

}  // namespace moesaic
