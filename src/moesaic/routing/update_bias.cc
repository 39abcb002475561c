#include "moesaic/core/error.h"
#include "moesaic/routing/gate.h"

namespace moesaic {

void update_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate, bool centred) {
  require(bias.size() == counts.size(), "gate: bias of {} experts and counts of {}, expected the same number",
          bias.size(), counts.size());
  const auto num_experts = static_cast<std::int64_t>(counts.size());
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    require(count >= 0, "gate: an expert's count is {}, expected 0 or more", count);
    total += count;
  }
  const auto sign = [&](std::int64_t count) {
    const std::int64_t scaled = num_experts * count;
    return scaled < total ? 1 : scaled > total ? -1 : 0;
  };
  std::int64_t sum_of_signs = 0;
  for (const std::int64_t count : counts) sum_of_signs += sign(count);
  const double centre = centred ? static_cast<double>(sum_of_signs) / static_cast<double>(num_experts) : 0.0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    bias[e] = static_cast<float>(bias[e] + rate * (sign(counts[e]) - centre));
  }
}

}  // namespace moesaic
