// generate.h: continue prompts, token by token, with a key-value cache.
//
// Collective: all ranks call with the same prompts and options; prompts are shared out over ranks in
// contiguous runs. One all-gather per round tells every rank every new token, so all of them know who is
// done; a rank whose prompts are done, or that has none, keeps joining with zero tokens until the last one
// is.
//
// Prefill reads the prompts, prefill_tokens of each rank at a time, and gives each its first token; decode
// gives one token to every unfinished prompt per round. Capacity is left out (gates are dropless), so a
// prompt's output depends on its tokens and its seed alone: not on other prompts, ranks, or the way experts
// are reached, but for rounding that flips a near tie. See docs/inference.md.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moesaic/infer/sampling.h"
#include "moesaic/nn/gate_states.h"
#include "moesaic/shard/sharded_model.h"

namespace moesaic {

struct Prompt {
  std::vector<std::int64_t> tokens;  // at least one
  std::int64_t max_new_tokens = 0;
  std::uint64_t seed = 0;
};

struct GenerateOptions {
  SamplingOptions sampling;
  // A prompt is done when its new tokens end with one of these; they are part of the output. An end token is
  // a stop of length 1.
  std::vector<std::vector<std::int64_t>> stops;
  // Tokens a new one may look back on, itself not counted; 0 = model.max_seq_len. Beyond it see
  // context_start().
  std::int64_t context = 0;
  std::int64_t prefill_tokens = 2048;  // bounds the memory of a round
  // Told of every new token in order, on every rank, as soon as it is known; `last`: its prompt is done.
  std::function<void(std::size_t prompt, std::int64_t token, bool last)> on_token = [](std::size_t,
                                                                                       std::int64_t, bool) {};
};

struct GenerateStats {
  // Of all ranks. prefill: tokens of prompts; decode: new tokens but the first of each prompt; reread: tokens
  // computed again when a context outgrew its limit.
  std::int64_t prefill_tokens = 0, decode_tokens = 0, reread_tokens = 0;
  std::int64_t decode_rounds = 0;
  double prefill_seconds = 0, decode_seconds = 0;  // by this rank's clock
  std::int64_t cache_bytes = 0;                    // this rank's; all of it is there from the start
  std::int64_t prefill_gather_bytes = 0, decode_gather_bytes = 0;  // weights this rank sent
};

struct Generated {
  std::vector<std::vector<std::int64_t>> tokens;  // the new ones of every prompt, on every rank
  GenerateStats stats;
};

// The first token that the one after `tokens` others looks back on. All of them while they fit. Past that the
// context is cut to its newer half and grows again, so it holds between context/2 and context tokens, at
// positions the model was trained on, and a token costs about two rows.
std::int64_t context_start(std::int64_t tokens, std::int64_t context);

// What generate() requires of its input, without a model: local, so that a program can ask before it starts
// ranks.
void check_request(const ModelConfig& config, const std::vector<Prompt>& prompts,
                   const GenerateOptions& options);

// InvalidArgument on empty prompts, ids outside the vocabulary, negative counts, a context longer than
// model.max_seq_len, empty stops. NonFinite, on every rank alike, naming the prompt, where no logit is
// finite.
Generated generate(ShardedModel& model, const GateStates& gates, const std::vector<Prompt>& prompts,
                   const GenerateOptions& options);

}  // namespace moesaic
