// generate.h: continue prompts, token by token.
//
// Collective: all ranks call with the same prompts and options; prompts are shared out over ranks in
// contiguous runs. A rank that has none left keeps joining with zero tokens until the last one is done.
//
// The whole context is computed anew for every token (there is no key-value cache yet): cost grows with its
// square.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/shard/sharded_model.h"

namespace moesaic {

struct GenerateOptions {
  double temperature = 0.0;  // 0 = greedy: the likeliest token, lowest id on ties
  std::uint64_t seed = 0;
};

struct Prompt {
  std::vector<std::int64_t> tokens;  // at least one
  std::int64_t max_new_tokens = 0;
};

// The new tokens of every prompt, on every rank. Draws depend on (seed, prompt number, position), not on the
// layout. Contexts longer than model.max_seq_len keep their newest tokens. InvalidArgument on empty prompts,
// ids outside the vocabulary, negative counts or temperatures.
std::vector<std::vector<std::int64_t>> generate(ShardedModel& model,
                                                const std::vector<std::vector<float>>& bias,
                                                const std::vector<Prompt>& prompts,
                                                const GenerateOptions& options);

}  // namespace moesaic
