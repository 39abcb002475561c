#include "moesaic/infer/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/nn/kv_cache.h"
#include "moesaic/train/data.h"
#include "moesaic/train/walk.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank says of a sequence in a round, where it is not a token.
constexpr std::int64_t kNothing = -1, kNotFinite = -2;

// Every rank keeps the tokens of all.
struct Sequence {
  const Prompt* prompt;
  std::vector<std::int64_t> tokens;
  std::int64_t produced = 0;
  std::int64_t start = 0;  // of its context
  bool done = false;
};

at::Tensor int64_tensor(const std::vector<std::int64_t>& values) {
  at::Tensor tensor = at::empty({std::ssize(values)}, at::kLong);
  std::ranges::copy(values, tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

class Generation {
 public:
  Generation(ShardedModel& model, const GateStates& gates, const std::vector<Prompt>& prompts,
             const GenerateOptions& options)
      : model_(model),
        options_(options),
        context_length_(options.context > 0 ? options.context : model.config().max_seq_len),
        context_(base_context(model, gates)),
        mine_(rows_of_rank(std::ssize(prompts), model.world().rank(), model.world().size())),
        cache_(model.config(), model.units().front()->dtype(), capacities(prompts)) {
    for (const Prompt& prompt : prompts) {
      sequences_.push_back({&prompt, prompt.tokens, 0, 0, prompt.max_new_tokens == 0});
    }
    context_.dropless = true;
    context_.cache = &cache_;
  }

  Generated run() {
    GenerateStats stats;
    stats.cache_bytes = cache_.bytes();
    const auto measured = [&](double& seconds, std::int64_t& bytes, auto&& rounds) {
      const auto start = Clock::now();
      const std::int64_t before = sent_bytes();
      rounds();
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
      bytes = sent_bytes() - before;
    };
    measured(stats.prefill_seconds, stats.prefill_gather_bytes, [&] {
      while (std::ranges::any_of(sequences_, [](const Sequence& s) { return !s.done && s.produced == 0; })) {
        round(/*prefill=*/true);
      }
    });
    measured(stats.decode_seconds, stats.decode_gather_bytes, [&] {
      while (std::ranges::any_of(sequences_, [](const Sequence& s) { return !s.done; })) {
        round(/*prefill=*/false);
        ++stats.decode_rounds;
      }
    });

    Generated generated;
    for (const Sequence& s : sequences_) {
      const auto prompt_tokens = std::ssize(s.prompt->tokens);
      if (s.produced > 0) {
        stats.prefill_tokens += prompt_tokens - context_start(prompt_tokens, context_length_);
        stats.decode_tokens += s.produced - 1;
        stats.reread_tokens += reread(prompt_tokens, std::ssize(s.tokens) - 1);
      }
      generated.tokens.emplace_back(s.tokens.begin() + prompt_tokens, s.tokens.end());
    }
    generated.stats = stats;
    return generated;
  }

 private:
  std::vector<std::int64_t> capacities(const std::vector<Prompt>& prompts) const {
    std::vector<std::int64_t> capacity;
    for (std::int64_t i = mine_.first; i < mine_.first + mine_.count; ++i) {
      const Prompt& prompt = prompts[static_cast<std::size_t>(i)];
      // The last new token is never fed.
      const std::int64_t fed = prompt.max_new_tokens - 1;
      const bool all_fit = fed <= context_length_ - std::ssize(prompt.tokens);
      capacity.push_back(fed < 0 ? 0 : all_fit ? std::ssize(prompt.tokens) + fed : context_length_);
    }
    return capacity;
  }

  std::int64_t sent_bytes() const {
    const Traffic traffic = model_.gather_traffic();
    return traffic.inter_node_bytes + traffic.intra_node_bytes;
  }

  // Tokens computed again while a sequence grew from `from` to `to` tokens.
  std::int64_t reread(std::int64_t from, std::int64_t to) const {
    std::int64_t sum = 0;
    for (std::int64_t n = from + 1; n <= to; ++n) {
      const std::int64_t start = context_start(n, context_length_);
      if (start != context_start(n - 1, context_length_)) sum += n - start - 1;
    }
    return sum;
  }

  // What this rank computes in a round, and whose next token that gives.
  struct Fed {
    std::vector<std::int64_t> tokens;
    std::vector<KvCache::Run> runs;
    std::vector<std::int64_t> last_rows;
    std::vector<std::size_t> ready;  // sequences, one per last row
  };

  Fed feed(bool prefill) {
    Fed fed;
    std::int64_t room = options_.prefill_tokens;
    for (std::int64_t i = 0; i < mine_.count && room > 0; ++i) {
      const auto slot = static_cast<std::size_t>(i);
      const auto index = static_cast<std::size_t>(mine_.first + i);
      Sequence& s = sequences_[index];
      if (s.done || (prefill && s.produced > 0)) continue;
      const std::int64_t start = context_start(std::ssize(s.tokens), context_length_);
      if (start != s.start) cache_.clear(slot);
      s.start = start;
      const std::int64_t first = start + cache_.length(slot), pending = std::ssize(s.tokens) - first;
      const std::int64_t count = std::min(pending, room);
      room -= count;
      fed.tokens.insert(fed.tokens.end(), s.tokens.begin() + first, s.tokens.begin() + first + count);
      fed.runs.push_back({slot, count});
      if (count < pending) continue;
      fed.last_rows.push_back(std::ssize(fed.tokens) - 1);
      fed.ready.push_back(index);
    }
    return fed;
  }

  void round(bool prefill) {
    const Fed fed = feed(prefill);
    cache_.begin(fed.runs);
    const at::Tensor logits =
        forward_logits(model_, int64_tensor(fed.tokens).unsqueeze(0), context_, int64_tensor(fed.last_rows))
            .to(at::kFloat)
            .contiguous();
    cache_.commit();

    std::vector<std::int64_t> news(static_cast<std::size_t>(mine_.count), kNothing);
    const auto vocab = static_cast<std::size_t>(model_.config().vocab_size);
    for (std::size_t i = 0; i < fed.ready.size(); ++i) {
      const Sequence& s = sequences_[fed.ready[i]];
      std::int64_t& token = news[fed.ready[i] - static_cast<std::size_t>(mine_.first)];
      try {
        token = sample({logits.const_data_ptr<float>() + i * vocab, vocab}, options_.sampling, s.prompt->seed,
                       s.tokens.size());
      } catch (const NonFinite&) {
        token = kNotFinite;  // all ranks must hear of it
      }
    }
    tell(news);
  }

  // Every rank learns every new token.
  void tell(const std::vector<std::int64_t>& news) {
    Communicator& world = model_.world();
    std::vector<std::int64_t> bytes, all(sequences_.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      bytes.push_back(rows_of_rank(std::ssize(sequences_), rank, world.size()).count *
                      std::int64_t{sizeof(std::int64_t)});
    }
    all_gather_v(world, std::as_bytes(std::span(news)), bytes, std::as_writable_bytes(std::span(all)));
    for (std::size_t i = 0; i < all.size(); ++i) {
      Sequence& s = sequences_[i];
      if (all[i] == kNotFinite) {
        throw NonFinite(fmt::format("generate: prompt {}, new token {}: no logit is a finite number", i + 1,
                                    s.produced + 1));
      }
      if (all[i] == kNothing) continue;
      s.tokens.push_back(all[i]);
      ++s.produced;
      s.done = s.produced == s.prompt->max_new_tokens || stops(s);
      options_.on_token(i, all[i], s.done);
    }
  }

  bool stops(const Sequence& s) const {
    return std::ranges::any_of(options_.stops, [&](const std::vector<std::int64_t>& stop) {
      return std::ssize(stop) <= s.produced && std::equal(stop.rbegin(), stop.rend(), s.tokens.rbegin());
    });
  }

  ShardedModel& model_;
  const GenerateOptions& options_;
  std::int64_t context_length_;
  StepContext context_;
  RowRange mine_;  // this rank's prompts
  KvCache cache_;
  std::vector<Sequence> sequences_;
};

}  // namespace

std::int64_t context_start(std::int64_t tokens, std::int64_t context) {
  if (tokens <= context) return 0;
  const std::int64_t step = std::max<std::int64_t>(1, context / 2);
  return (tokens - context + step - 1) / step * step;
}

void check_request(const ModelConfig& config, const std::vector<Prompt>& prompts,
                   const GenerateOptions& options) {
  validate(options.sampling);
  require(options.context >= 0 && options.context <= config.max_seq_len,
          "generate: a context of {} tokens, expected 0 to model.max_seq_len ({})", options.context,
          config.max_seq_len);
  require(options.prefill_tokens >= 1, "generate: prefill_tokens is {}, expected 1 or more",
          options.prefill_tokens);
  for (const auto& stop : options.stops) require(!stop.empty(), "generate: a stop is empty");
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

Generated generate(ShardedModel& model, const GateStates& gates, const std::vector<Prompt>& prompts,
                   const GenerateOptions& options) {
  check_request(model.config(), prompts, options);
  return Generation(model, gates, prompts, options).run();
}

}  // namespace moesaic
