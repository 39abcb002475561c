// Logits with the cache are those of the whole context computed at once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "moesaic/nn/kv_cache.h"
#include "moesaic/train/walk.h"
#include "tests/infer/models.h"

namespace moesaic::testing {
namespace {

using Tokens = std::vector<std::int64_t>;

Tokens text(std::size_t number, std::int64_t length) {
  Tokens tokens;
  for (std::int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<std::int64_t>(random_bits(4, static_cast<std::uint64_t>(i), number) % 40));
  }
  return tokens;
}

at::Tensor tensor_of(const Tokens& tokens) {
  at::Tensor tensor = at::empty({std::ssize(tokens)}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

// Padded on the right, padding masked, no cache: logits [length,V] of each sequence.
std::vector<at::Tensor> uncached(ShardedModel& model, const GateStates& gates,
                                 const std::vector<Tokens>& texts) {
  std::int64_t longest = 1;
  for (const Tokens& t : texts) longest = std::max<std::int64_t>(longest, std::ssize(t));
  StepContext context = base_context(model, gates);
  context.dropless = true;
  at::Tensor tokens = at::zeros({std::ssize(texts), longest}, at::kLong);
  for (std::int64_t i = 0; i < std::ssize(texts); ++i) {
    const Tokens& t = texts[static_cast<std::size_t>(i)];
    tokens.select(0, i).narrow(0, 0, std::ssize(t)).copy_(tensor_of(t));
    context.mask.insert(context.mask.end(), t.size(), 1);
    context.mask.insert(context.mask.end(), static_cast<std::size_t>(longest) - t.size(), 0);
  }
  const at::Tensor logits = forward_logits(model, tokens, context);
  std::vector<at::Tensor> result;
  for (std::int64_t i = 0; i < std::ssize(texts); ++i) {
    result.push_back(logits.select(0, i).narrow(0, 0, std::ssize(texts[static_cast<std::size_t>(i)])));
  }
  return result;
}

// The same in passes: counts[p][i] new tokens of sequence i in pass p.
std::vector<at::Tensor> cached(ShardedModel& model, const GateStates& gates, const std::vector<Tokens>& texts,
                               const std::vector<std::vector<std::int64_t>>& counts) {
  Tokens capacity;
  for (const Tokens& t : texts) capacity.push_back(std::ssize(t));
  KvCache cache(model.config(), model.units().front()->dtype(), capacity);
  StepContext context = base_context(model, gates);
  context.dropless = true;
  context.cache = &cache;
  std::vector<std::vector<at::Tensor>> parts(texts.size());
  for (const auto& pass : counts) {
    Tokens tokens;
    std::vector<KvCache::Run> runs;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (pass[i] == 0) continue;
      const auto begin = texts[i].begin() + cache.length(i);
      tokens.insert(tokens.end(), begin, begin + pass[i]);
      runs.push_back({i, pass[i]});
    }
    cache.begin(runs);
    const at::Tensor logits = forward_logits(model, tensor_of(tokens).unsqueeze(0), context)[0];
    cache.commit();
    std::int64_t row = 0;
    for (const KvCache::Run& run : runs) {
      parts[run.sequence].push_back(logits.narrow(0, row, run.count));
      row += run.count;
    }
  }
  std::vector<at::Tensor> result;
  for (const auto& of_sequence : parts) result.push_back(at::cat(of_sequence, 0));
  return result;
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  const double scale = expected.abs().max().item().toDouble();
  EXPECT_LE((got.to(at::kFloat) - expected.to(at::kFloat)).abs().max().item().toDouble(), tolerance * scale);
}

// Rank r has r % 3 sequences (none on rank 0 where there are others), of 11, 8, ... tokens: a prefill in two
// parts, then decode; the shorter ones end early.
void expect_cached_equals_uncached(const ModelConfig& config, DType dtype, double tolerance) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Modes& modes : {kGather, kExchange, kMixed}) {
      with_model(config, ranks, modes, dtype, [&](ShardedModel& model, const auto& gates) {
        const int rank = model.world().rank();
        const std::size_t sequences = ranks == 1 ? 3 : static_cast<std::size_t>(rank % 3);
        std::vector<Tokens> texts;
        for (std::size_t i = 0; i < sequences; ++i) {
          texts.push_back(
              text(static_cast<std::size_t>(rank) * 4 + i, 11 - 3 * static_cast<std::int64_t>(i)));
        }
        std::vector<std::vector<std::int64_t>> counts = {Tokens(sequences, 2), Tokens(sequences, 2)};
        for (std::int64_t token = 4; token < 11; ++token) {
          counts.emplace_back();
          for (const Tokens& t : texts) counts.back().push_back(token < std::ssize(t) ? 1 : 0);
        }
        const auto expected = uncached(model, gates, texts), got = cached(model, gates, texts, counts);
        for (std::size_t i = 0; i < sequences; ++i) {
          SCOPED_TRACE(fmt::format("rank {} of {}, sequence {}", rank, ranks, i));
          expect_close(got[i], expected[i], tolerance);
        }
      });
    }
  }
}

TEST(Cache, GivesTheLogitsOfTheWholeContextDropless) {
  expect_cached_equals_uncached(model_config(), DType::kF32, 1e-5);
}

TEST(Cache, GivesTheLogitsOfTheWholeContextWhereTrainingHasACapacity) {
  ModelConfig config = model_config();
  config.moe.gate.capacity_factor = 0.5;  // would drop half
  config.moe.gate.normalise = Normalise::kAfterDrop;
  expect_cached_equals_uncached(config, DType::kF32, 1e-5);
  config.moe.gate.name = "switch";
  config.moe.gate.top_k = 1;
  config.moe.gate.normalise = Normalise::kNone;
  config.moe.gate.capacity_scope = CapacityScope::kRank;
  expect_cached_equals_uncached(config, DType::kF32, 1e-5);
}

TEST(Cache, GivesTheLogitsOfTheWholeContextOfADeepSeekLikeModel) {
  ModelConfig config = model_config();
  config.num_dense_layers = 1;
  config.d_ff = 24;
  config.tie_embeddings = true;
  config.qk_norm = false;
  config.clip_qkv = 1.0;
  config.moe.num_shared_experts = 1;
  config.moe.d_shared = 24;
  config.moe.gate.score = ScoreKind::kSigmoid;
  config.moe.gate.normalise = Normalise::kBeforeDrop;
  config.moe.gate.bias_balance = true;
  expect_cached_equals_uncached(config, DType::kF32, 1e-5);
}

TEST(Cache, GivesTheLogitsOfTheWholeContextInBf16ToItsPrecision) {
  ModelConfig config = model_config();
  config.moe.gate.top_k = 4;  // all experts: no choice for rounding to flip
  expect_cached_equals_uncached(config, DType::kBF16, 0.06);
}

TEST(Cache, APromptReadInOnePassIsBitEqualToNoCache) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    with_model(model_config(), 1, kGather, dtype, [&](ShardedModel& model, const auto& gates) {
      const std::vector<Tokens> texts = {text(0, 11)};
      EXPECT_TRUE(at::equal(cached(model, gates, texts, {{11}})[0], uncached(model, gates, texts)[0]));
    });
  }
}

TEST(Cache, AttentionOfASequenceIsBitEqualInAnyCompany) {
  const ModelConfig config = model_config();
  const auto heads = [](std::int64_t first, std::int64_t count) {
    const at::Tensor all = at::sin(at::arange(3 * 2 * 20 * 16, at::kFloat)).view({3, 1, 2, 20, 16});
    return Heads{all[0].narrow(2, first, count), all[1].narrow(2, first, count),
                 all[2].narrow(2, first, count)};
  };
  KvCache together(config, DType::kF32, {8, 9}), alone(config, DType::kF32, {9});
  together.begin({{0, 5}, {1, 6}});
  alone.begin({{0, 6}});
  EXPECT_TRUE(at::equal(together.attend(0, heads(0, 11)).narrow(1, 5, 6), alone.attend(0, heads(5, 6))));
  together.commit();
  alone.commit();
  together.begin({{1, 1}, {0, 1}});
  alone.begin({{0, 1}});
  EXPECT_TRUE(at::equal(together.attend(0, heads(11, 2)).narrow(1, 0, 1), alone.attend(0, heads(11, 1))));
}

TEST(Cache, APassWithoutCommitLeavesNoTrace) {
  with_model(model_config(), 1, kGather, DType::kF32, [&](ShardedModel& model, const auto& gates) {
    KvCache cache(model.config(), DType::kF32, {6});
    StepContext context = base_context(model, gates);
    context.cache = &cache;
    const auto pass = [&](const Tokens& tokens) {
      cache.begin({{0, std::ssize(tokens)}});
      return forward_logits(model, tensor_of(tokens).unsqueeze(0), context);
    };
    pass({1, 2, 3});
    cache.commit();
    const at::Tensor first = pass({4});
    pass({9, 9, 9});  // given up
    EXPECT_EQ(cache.length(0), 3);
    EXPECT_TRUE(at::equal(pass({4}), first));
  });
}

TEST(Cache, IsAllocatedOnceToTheCapacitiesAndRefusesMore) {
  KvCache cache(model_config(), DType::kBF16, {5, 0, 7});
  EXPECT_EQ(cache.bytes(), 2 * 2 * 32 * 12 * 2);  // keys and values, layers, width, positions, bf16
  EXPECT_THROW(cache.begin({{0, 6}}), InvalidArgument);
  EXPECT_THROW(cache.begin({{1, 1}}), InvalidArgument);
  EXPECT_THROW(cache.begin({{3, 1}}), InvalidArgument);
  EXPECT_THROW(cache.begin({{0, 0}}), InvalidArgument);
  EXPECT_THROW(cache.begin({{0, 1}, {0, 1}}), InvalidArgument);
  cache.begin({{0, 5}, {2, 7}});
  EXPECT_EQ(cache.num_tokens(), 12);
  cache.commit();
  EXPECT_THROW(cache.begin({{0, 1}}), InvalidArgument);
  cache.clear(0);
  EXPECT_NO_THROW(cache.begin({{0, 1}}));
}

}  // namespace
}  // namespace moesaic::testing
