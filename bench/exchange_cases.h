// exchange_cases.h: the tokens that the benchmark of routes exchanges; the same for ours and for peers.
//
// Everything follows from the case and the rank's number.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "moesaic/core/bf16.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/plan.h"

namespace moesaic::bench {

inline constexpr std::int64_t kExchangedWidth = 512;  // bf16
inline constexpr int kExchangedExperts = 64;          // placed contiguously

struct ExchangeCase {
  std::int64_t tokens = 0;  // of each rank
  int top_k = 1;
  bool skewed = false;  // an expert's popularity falls with its place in a random order, to the power 0.8

  std::string text() const { return fmt::format("{},{},{}", tokens, top_k, skewed ? 1 : 0); }
  std::string name() const {
    return fmt::format("{} tokens top-{} {}", tokens, top_k, skewed ? "skewed" : "uniform");
  }
  static ExchangeCase from(const std::string& text) {
    long long tokens = 0;
    int top_k = 0, skewed = 0;
    require(std::sscanf(text.c_str(), "%lld,%d,%d", &tokens, &top_k, &skewed) == 3,
            "exchange case '{}': expected TOKENS,TOP_K,SKEWED", text);
    return {tokens, top_k, skewed != 0};
  }
};

inline RoutingPlan routing_of(const ExchangeCase& c, int rank) {
  RoutingPlan plan;
  plan.num_tokens = c.tokens;
  plan.num_choices = c.top_k;
  plan.num_experts = kExchangedExperts;
  std::vector<float> popularity;
  const auto order = random_key(1, "popularity");
  for (int e = 0; e < kExchangedExperts; ++e) {
    const auto place = static_cast<float>(random_permutation(order, kExchangedExperts, e));
    popularity.push_back(c.skewed ? -0.8f * std::log(1 + place) : 0.0f);
  }
  std::vector<float> score(kExchangedExperts);
  std::vector<std::int32_t> ids(kExchangedExperts);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    // The k largest of log-popularity plus Gumbel noise are k draws without putting back.
    const auto key =
        random_key(static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(t), "token");
    for (std::size_t e = 0; e < score.size(); ++e) {
      score[e] = popularity[e] - std::log(-std::log(std::clamp(random_uniform(key, e), 1e-7f, 1 - 1e-7f)));
    }
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + c.top_k, ids.end(), [&](std::int32_t a, std::int32_t b) {
      return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
    });
    plan.expert_ids.insert(plan.expert_ids.end(), ids.begin(), ids.begin() + c.top_k);
  }
  plan.weights.assign(plan.expert_ids.size(), 1.0f);
  return plan;
}

// Small integers, so that sums of a token's rows are exact.
inline float exchanged_value(int rank, std::int64_t token, std::int64_t d) {
  return static_cast<float>((static_cast<std::int64_t>(rank) * 5 + token * 3 + d) % 8);
}

inline std::vector<BF16> exchanged_rows(const ExchangeCase& c, int rank) {
  std::vector<BF16> x;
  x.reserve(static_cast<std::size_t>(c.tokens * kExchangedWidth));
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t d = 0; d < kExchangedWidth; ++d) x.push_back(to_bf16(exchanged_value(rank, t, d)));
  }
  return x;
}

// Elements of y that are not their token's times copies[token].
inline std::int64_t wrong_elements(const std::vector<BF16>& y, int rank, const std::vector<int>& copies) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto t = static_cast<std::int64_t>(i) / kExchangedWidth;
    const float expected = exchanged_value(rank, t, static_cast<std::int64_t>(i) % kExchangedWidth) *
                           static_cast<float>(copies[static_cast<std::size_t>(t)]);
    wrong += to_float(y[i]) != expected;
  }
  return wrong;
}

}  // namespace moesaic::bench
