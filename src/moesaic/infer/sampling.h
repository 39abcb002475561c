// sampling.h: the next token from a row of logits.
//
// Local. The draw is a pure function of (seed, position): it does not depend on which rank makes it, on the
// batch, or on what was drawn before.
// Sources: Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p).
#pragma once

#include <cstdint>
#include <span>

namespace moesaic {

struct SamplingOptions {
  double temperature = 0.0;  // 0 = greedy: the likeliest token, lowest id on ties
  std::int64_t top_k = 0;    // draw from the k likeliest; 0 = from all
  double top_p = 1.0;        // draw from the fewest likeliest whose probabilities add up to p; 1 = from all
};

// InvalidArgument naming the option, what was got and what is allowed.
void validate(const SamplingOptions& options);

// logits [V]. Temperature first, then top-k, then top-p over what top-k left, as Hugging Face does; of equal
// logits the lowest ids stay. NonFinite where no logit is a finite number.
std::int64_t sample(std::span<const float> logits, const SamplingOptions& options, std::uint64_t seed,
                    std::uint64_t position);

}  // namespace moesaic
