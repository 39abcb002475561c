#include "moesaic/infer/generate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "moesaic/core/error.h"
#include "moesaic/train/walk.h"
#include "tests/infer/models.h"

namespace moesaic::testing {
namespace {

using Tokens = std::vector<std::int64_t>;
using Outputs = std::vector<Tokens>;

// What every rank returned, checked to be the same on all; the statistics of rank 0.
Generated generate_with(const ModelConfig& config, int ranks, const Modes& modes,
                        const std::vector<Prompt>& prompts, const GenerateOptions& options = {},
                        bool keep_gathered = false) {
  std::mutex mutex;
  std::vector<Outputs> returned;
  Generated first;
  with_model(config, ranks, modes, DType::kF32, [&](ShardedModel& model, const auto& gates) {
    model.keep_gathered(keep_gathered);
    const Generated generated = generate(model, gates, prompts, options);
    const std::lock_guard lock(mutex);
    returned.push_back(generated.tokens);
    if (model.world().rank() == 0) first = generated;
  });
  for (const Outputs& outputs : returned) EXPECT_EQ(outputs, returned.front());
  return first;
}

Outputs generate_on(int ranks, const Modes& modes, const std::vector<Prompt>& prompts,
                    const GenerateOptions& options = {}) {
  return generate_with(model_config(), ranks, modes, prompts, options).tokens;
}

GenerateOptions drawn(SamplingOptions sampling = {.temperature = 1.0}) {
  GenerateOptions options;
  options.sampling = sampling;
  return options;
}

const std::vector<Prompt> kPrompts = {
    {{1, 2, 3}, 3, 11}, {{4}, 10, 12}, {{7, 8, 9, 10, 11}, 0, 13}, {{5, 6}, 20, 14}};

// Token by token, each time the whole context anew, without a cache.
Tokens slowly(const ModelConfig& config, const Prompt& prompt, const GenerateOptions& options) {
  Tokens tokens = prompt.tokens;
  with_model(config, 1, kGather, DType::kF32, [&](ShardedModel& model, const auto& gates) {
    StepContext context = base_context(model, gates);
    context.dropless = true;
    for (std::int64_t i = 0; i < prompt.max_new_tokens; ++i) {
      const std::int64_t begin = context_start(std::ssize(tokens), config.max_seq_len);
      const std::int64_t length = std::ssize(tokens) - begin;
      at::Tensor input = at::empty({1, length}, at::kLong);
      std::copy(tokens.begin() + begin, tokens.end(), input.mutable_data_ptr<std::int64_t>());
      const at::Tensor row = forward_logits(model, input, context)[0][length - 1].contiguous();
      tokens.push_back(sample({row.const_data_ptr<float>(), static_cast<std::size_t>(row.numel())},
                              options.sampling, prompt.seed, tokens.size()));
    }
  });
  return {tokens.begin() + std::ssize(prompt.tokens), tokens.end()};
}

TEST(Generate, RanksThatFinishEarlyKeepJoining) {
  const std::vector<Prompt> prompts = {{{1, 2, 3}, 3}, {{4, 5}, 10}};
  for (const Modes& modes : {kExchange, kGather, kMixed}) {
    for (const int ranks : {2, 4}) {  // of four, two never have any
      const Outputs outputs = generate_on(ranks, modes, prompts);
      EXPECT_EQ(outputs[0].size(), 3u);
      EXPECT_EQ(outputs[1].size(), 10u);
    }
  }
}

TEST(Generate, GivesTheTokensOfTheWholeContextComputedAnew) {
  ModelConfig with_capacity = model_config();
  with_capacity.moe.gate.capacity_factor = 0.5;
  for (const ModelConfig& config : {model_config(), with_capacity}) {
    for (const GenerateOptions& options : {GenerateOptions{}, drawn()}) {
      const Outputs outputs = generate_with(config, 2, kExchange, kPrompts, options).tokens;
      for (std::size_t i = 0; i < kPrompts.size(); ++i) {
        EXPECT_EQ(outputs[i], slowly(config, kPrompts[i], options)) << "prompt " << i + 1;
      }
    }
  }
}

TEST(Generate, GivesTheSameTokensInEveryLayoutGreedyOrDrawn) {
  for (const GenerateOptions& options :
       {GenerateOptions{}, drawn(), drawn({.temperature = 0.9, .top_k = 8, .top_p = 0.9})}) {
    const Outputs one = generate_on(1, kGather, kPrompts, options);
    for (const int ranks : {2, 3, 4}) {
      for (const Modes& modes : {kExchange, kGather, kMixed}) {
        EXPECT_EQ(generate_on(ranks, modes, kPrompts, options), one) << ranks << " ranks";
      }
    }
    EXPECT_EQ(one[3].size(), 20u);  // past max_seq_len
  }
}

TEST(Generate, APromptsOutputDoesNotDependOnItsCompany) {
  for (const GenerateOptions& options : {GenerateOptions{}, drawn()}) {
    const Outputs together = generate_on(1, kGather, kPrompts, options);
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      EXPECT_EQ(generate_on(1, kGather, {kPrompts[i]}, options)[0], together[i]) << "prompt " << i + 1;
    }
  }
}

TEST(Generate, AnotherSeedDrawsOtherTokens) {
  EXPECT_NE(generate_on(1, kGather, {{{1}, 10, 1}}, drawn()),
            generate_on(1, kGather, {{{1}, 10, 2}}, drawn()));
  EXPECT_EQ(generate_on(1, kGather, {{{1}, 10, 1}}), generate_on(1, kGather, {{{1}, 10, 2}}));  // greedy
}

TEST(Generate, HowMuchIsReadAtATimeDoesNotMatter) {
  const std::vector<Prompt> prompts = {{{1, 2, 3, 4, 5, 6, 7}, 4}, {{4}, 4}, {{9, 8, 7, 6, 5}, 20}};
  const Outputs expected = generate_on(1, kGather, prompts);
  for (const std::int64_t at_a_time : {1, 3, 8}) {
    GenerateOptions options;
    options.prefill_tokens = at_a_time;
    EXPECT_EQ(generate_on(2, kExchange, prompts, options), expected) << at_a_time << " tokens";
  }
}

TEST(Generate, StopsAfterAStopOnEveryRank) {
  const Outputs whole = generate_on(2, kExchange, kPrompts);
  // What prompt 4 says third and fourth ends it, unless it said so before.
  GenerateOptions options;
  options.stops = {{whole[3][2], whole[3][3]}};
  const Outputs stopped = generate_on(2, kExchange, kPrompts, options);
  const auto ends =
      std::search(whole[3].begin(), whole[3].end(), options.stops[0].begin(), options.stops[0].end()) + 2;
  EXPECT_EQ(stopped[3], Tokens(whole[3].begin(), ends));
  options.stops = {{39, 39, 39, 39}, {whole[1][0]}};
  EXPECT_EQ(generate_on(2, kExchange, kPrompts, options)[1], Tokens{whole[1][0]});
  // A stop that the prompt itself completes does not count.
  options.stops = {{4, whole[1][0]}};
  EXPECT_GT(generate_on(2, kExchange, kPrompts, options)[1].size(), 1u);
}

TEST(Generate, TellsEveryTokenInOrderAsItComes) {
  std::mutex mutex;
  std::vector<Outputs> told(2, Outputs(kPrompts.size()));
  std::vector<std::vector<int>> lasts(2, std::vector<int>(kPrompts.size()));
  Outputs outputs;
  with_model(model_config(), 2, kExchange, DType::kF32, [&](ShardedModel& model, const auto& gates) {
    const auto rank = static_cast<std::size_t>(model.world().rank());
    GenerateOptions options;
    options.on_token = [&](std::size_t prompt, std::int64_t token, bool last) {
      EXPECT_EQ(lasts[rank][prompt], 0);
      told[rank][prompt].push_back(token);
      lasts[rank][prompt] += last ? 1 : 0;
    };
    const Generated generated = generate(model, gates, kPrompts, options);
    const std::lock_guard lock(mutex);
    outputs = generated.tokens;
  });
  EXPECT_EQ(told[0], outputs);
  EXPECT_EQ(told[1], outputs);
  EXPECT_EQ(lasts[0], (std::vector<int>{1, 1, 0, 1}));
}

TEST(Generate, ContextsAreCutToTheirNewerHalf) {
  EXPECT_EQ(context_start(12, 12), 0);
  EXPECT_EQ(context_start(13, 12), 6);
  EXPECT_EQ(context_start(18, 12), 6);
  EXPECT_EQ(context_start(19, 12), 12);
  EXPECT_EQ(context_start(4, 1), 3);
  // A prompt longer than the context is cut as if it had grown to its length.
  Prompt grown{{1, 2, 3}, 20};
  const Tokens once = generate_on(1, kGather, {grown})[0];
  Prompt given = grown;
  given.tokens.insert(given.tokens.end(), once.begin(), once.begin() + 14);
  given.max_new_tokens = 6;
  EXPECT_EQ(generate_on(1, kGather, {given})[0], Tokens(once.begin() + 14, once.end()));
}

TEST(Generate, CountsWhatItDid) {
  GenerateOptions options;
  options.context = 8;
  const GenerateStats stats =
      generate_with(model_config(), 2, kExchange, {{{1, 2, 3}, 3}, {{4}, 1}, {{5}, 12}}, options).stats;
  EXPECT_EQ(stats.prefill_tokens, 5);
  EXPECT_EQ(stats.decode_tokens, 2 + 0 + 11);
  EXPECT_EQ(stats.decode_rounds, 11);
  EXPECT_EQ(stats.reread_tokens, 4);                 // the 9th token of the third: 4 of its 8 go on
  EXPECT_EQ(stats.cache_bytes, 2 * 2 * 32 * 6 * 4);  // prompts 1 and 2: 5 and 1 positions, fp32
}

TEST(Generate, KeptWeightsAreGatheredOnceAndGiveTheSameTokens) {
  const std::vector<Prompt> prompts = {{{1, 2}, 4}, {{3}, 6}};
  const Generated anew = generate_with(model_config(), 2, kGather, prompts);
  const Generated kept = generate_with(model_config(), 2, kGather, prompts, {}, /*keep_gathered=*/true);
  EXPECT_EQ(kept.tokens, anew.tokens);
  EXPECT_EQ(kept.stats.decode_gather_bytes, 0);
  EXPECT_EQ(kept.stats.prefill_gather_bytes, anew.stats.prefill_gather_bytes);
  EXPECT_EQ(anew.stats.decode_gather_bytes, 5 * anew.stats.prefill_gather_bytes);
  EXPECT_GT(anew.stats.prefill_gather_bytes, 0);
}

TEST(Generate, RefusesBadPromptsNamingThem) {
  const auto refused = [](const std::vector<Prompt>& prompts, const GenerateOptions& options = {}) {
    EXPECT_THROW(generate_on(1, kGather, prompts, options), InvalidArgument);
  };
  refused({{{}, 3}});
  refused({{{40}, 3}});
  refused({{{-1}, 3}});
  refused({{{1}, -3}});
  refused({{{1}, 3}}, drawn({.temperature = -0.5}));
  GenerateOptions options;
  options.context = 13;
  refused({{{1}, 3}}, options);
  options.context = 0;
  options.stops = {{}};
  refused({{{1}, 3}}, options);
}

TEST(Generate, LogitsThatAreNotFiniteEndAllRanksNamingThePrompt) {
  for (const int ranks : {1, 2}) {
    with_model(model_config(), ranks, kExchange, DType::kF32, [&](ShardedModel& model, const auto& gates) {
      for (auto& unit : model.units()) {
        for (const Segment& segment : unit->layout().shard_segments(model.world().rank())) {
          if (segment.tensor->name != "lm_head.weight") continue;
          std::fill_n(unit->master().data() + segment.offset, segment.count,
                      std::numeric_limits<float>::quiet_NaN());
        }
      }
      model.refresh_images();
      try {
        generate(model, gates, {{{1}, 2}}, {});
        ADD_FAILURE() << "rank " << model.world().rank() << " went on";
      } catch (const NonFinite& error) {
        EXPECT_NE(std::string(error.what()).find("prompt 1"), std::string::npos) << error.what();
      }
    });
  }
}

}  // namespace
}  // namespace moesaic::testing
