#include "moesaic/infer/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/train/data.h"
#include "moesaic/train/walk.h"

namespace moesaic {
namespace {

struct Sequence {
  std::uint64_t prompt_number;
  std::vector<std::int64_t> tokens;
  std::int64_t left;
  std::vector<std::int64_t> produced;
};

void check(const ModelConfig& config, const std::vector<Prompt>& prompts, const GenerateOptions& options) {
  require(std::isfinite(options.temperature) && options.temperature >= 0,
          "generate: temperature is {}, expected 0 (greedy) or more", options.temperature);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    require(!prompts[i].tokens.empty(), "generate: prompt {} is empty, expected at least one token", i + 1);
    require(prompts[i].max_new_tokens >= 0, "generate: prompt {} asks for {} new tokens, expected 0 or more",
            i + 1, prompts[i].max_new_tokens);
    for (const std::int64_t token : prompts[i].tokens) {
      require(token >= 0 && token < config.vocab_size, "generate: prompt {} has token {}, expected 0..{}",
              i + 1, token, config.vocab_size - 1);
    }
  }
}

std::int64_t pick(std::span<const float> logits, const GenerateOptions& options, std::uint64_t key,
                  const Sequence& sequence) {
  const auto best = std::ranges::max_element(logits) - logits.begin();  // the first of equals
  if (options.temperature == 0) return best;
  std::vector<double> cumulative(logits.size());
  double sum = 0;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    sum += std::exp(
        (static_cast<double>(logits[v]) - static_cast<double>(logits[static_cast<std::size_t>(best)])) /
        options.temperature);
    cumulative[v] = sum;
  }
  const double drawn = random_uniform(key, sequence.tokens.size(), sequence.prompt_number) * sum;
  const auto at = std::ranges::upper_bound(cumulative, drawn) - cumulative.begin();
  return std::min<std::int64_t>(at, static_cast<std::int64_t>(logits.size()) - 1);
}

// One token for every sequence that still wants one.
void extend(ShardedModel& model, StepContext& context, std::vector<Sequence>& sequences,
            const GenerateOptions& options) {
  const std::int64_t window = model.config().max_seq_len;
  std::vector<Sequence*> active;
  std::int64_t longest = 1;
  for (Sequence& sequence : sequences) {
    if (sequence.left == 0) continue;
    active.push_back(&sequence);
    longest = std::max(longest, std::min(window, static_cast<std::int64_t>(sequence.tokens.size())));
  }
  const auto rows = static_cast<std::int64_t>(active.size());
  at::Tensor tokens = at::zeros({rows, longest}, at::kLong);
  context.mask.assign(static_cast<std::size_t>(rows * longest), 0);
  std::vector<std::int64_t> lengths;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto& all = active[static_cast<std::size_t>(row)]->tokens;
    const std::int64_t length = std::min(window, static_cast<std::int64_t>(all.size()));
    std::copy(all.end() - length, all.end(), tokens.mutable_data_ptr<std::int64_t>() + row * longest);
    std::fill_n(context.mask.begin() + row * longest, length, std::uint8_t{1});
    lengths.push_back(length);
  }

  const at::Tensor logits = forward_logits(model, tokens, context).to(at::kFloat).contiguous();
  const std::int64_t vocab = model.config().vocab_size;
  const std::uint64_t key = random_key(options.seed, "generate");
  for (std::int64_t row = 0; row < rows; ++row) {
    Sequence& sequence = *active[static_cast<std::size_t>(row)];
    const float* at_last =
        logits.const_data_ptr<float>() + (row * longest + lengths[static_cast<std::size_t>(row)] - 1) * vocab;
    const std::int64_t token = pick({at_last, static_cast<std::size_t>(vocab)}, options, key, sequence);
    sequence.tokens.push_back(token);
    sequence.produced.push_back(token);
    --sequence.left;
  }
}

}  // namespace

std::vector<std::vector<std::int64_t>> generate(ShardedModel& model,
                                                const std::vector<std::vector<float>>& bias,
                                                const std::vector<Prompt>& prompts,
                                                const GenerateOptions& options) {
  check(model.config(), prompts, options);
  Communicator& world = model.world();
  const auto num_prompts = static_cast<std::int64_t>(prompts.size());

  std::vector<Sequence> mine;
  std::int64_t rounds = 0;
  for (std::int64_t i = 0; i < num_prompts; ++i) {
    const Prompt& prompt = prompts[static_cast<std::size_t>(i)];
    rounds = std::max(rounds, prompt.max_new_tokens);
    const RowRange rows = rows_of_rank(num_prompts, world.rank(), world.size());
    if (i < rows.first || i >= rows.first + rows.count) continue;
    mine.push_back({static_cast<std::uint64_t>(i), prompt.tokens, prompt.max_new_tokens, {}});
  }

  StepContext context = base_context(model, bias);
  for (std::int64_t round = 0; round < rounds; ++round) extend(model, context, mine, options);

  // Everybody knows how much everybody made; bring it together.
  std::vector<std::int64_t> made;
  for (const Sequence& sequence : mine)
    made.insert(made.end(), sequence.produced.begin(), sequence.produced.end());
  std::vector<std::int64_t> bytes_per_rank;
  std::int64_t total = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::int64_t tokens = 0;
    const RowRange rows = rows_of_rank(num_prompts, rank, world.size());
    for (std::int64_t i = rows.first; i < rows.first + rows.count; ++i)
      tokens += prompts[static_cast<std::size_t>(i)].max_new_tokens;
    bytes_per_rank.push_back(tokens * std::int64_t{sizeof(std::int64_t)});
    total += tokens;
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(total));
  all_gather_v(world, std::as_bytes(std::span(made)), bytes_per_rank, std::as_writable_bytes(std::span(all)));

  std::vector<std::vector<std::int64_t>> results;
  auto at = all.begin();
  for (const Prompt& prompt : prompts) {
    results.emplace_back(at, at + prompt.max_new_tokens);
    at += prompt.max_new_tokens;
  }
  return results;
}

}  // namespace moesaic
