// expert_choice: every expert takes the tokens that give it the largest probability, as many as its capacity.
// Zhou et al. 2022 (arXiv 2202.09368).
#include <algorithm>
#include <bit>
#include <cstdint>

#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

// Ascending in this key is descending in p, which is not negative, then ascending in the token.
std::uint64_t best_first(float p, std::size_t token) {
  return std::uint64_t{~std::bit_cast<std::uint32_t>(p)} << 32 | token;
}
std::int64_t token_of(std::uint64_t key) { return static_cast<std::int64_t>(key & 0xffffffff); }

// Ties go to the earliest token.
Assignment take_best(const GateOptions& options, std::span<const float> logits) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const std::size_t num_tokens = rows_of(options, logits);
  const auto capacity = expert_capacity(options, static_cast<std::int64_t>(num_tokens));
  const std::vector<float> p = softmax_rows(logits, options.num_experts);
  Assignment taken(num_experts);
  std::vector<std::uint64_t> keys(num_tokens);
  for (std::size_t e = 0; e < num_experts; ++e) {
    for (std::size_t t = 0; t < num_tokens; ++t) keys[t] = best_first(p[t * num_experts + e], t);
    const auto end = keys.begin() + capacity;
    std::nth_element(keys.begin(), end, keys.end());
    std::sort(keys.begin(), end);
    taken[e].resize(static_cast<std::size_t>(capacity));
    std::transform(keys.begin(), end, taken[e].begin(), token_of);
  }
  return taken;
}

}  // namespace

extern const Gate kExpertChoiceGate;
const Gate kExpertChoiceGate{
    .name = "expert_choice",
    .capacity = Gate::Capacity::kRequired,
    .note =
        "lets experts look across the batch, at later tokens too: a language model learns to predict "
        "from what it will not have when it generates (each token then takes its top_k best experts)",
    .ordered = false,
    .gathering =
        [](const GateOptions& options, bool) {
          return options.capacity_scope == CapacityScope::kRank ? Gathering::kOwnRank : Gathering::kAllRanks;
        },
    .assign = take_best,
    .alone = "top_k",
    .weighing = [](const GateOptions&) { return Weighing{}; },
    .balance = [](const GateOptions&) { return Balance{}; },
};

}  // namespace moesaic
