// exchange_cases.h: the tokens that the benchmark of routes exchanges; the same for ours and for peers.
//
// Everything follows from the case and the rank's number.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "bench/recorded_routing.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/plan.h"

namespace moesaic::bench {

inline constexpr std::int64_t kExchangedWidth = 512;                 // bf16
inline constexpr int kExchangedExperts = RecordedRouting::kExperts;  // placed contiguously

struct ExchangeCase {
  std::int64_t tokens = 0;  // of each rank
  int top_k = 1;
  bool recorded = false;  // a trained model's choices, its first ones where top_k is less; else uniform

  std::string text() const { return fmt::format("{},{},{}", tokens, top_k, recorded ? 1 : 0); }
  std::string name() const {
    return fmt::format("{} tokens top-{} {}", tokens, top_k, recorded ? "recorded" : "uniform");
  }
  static ExchangeCase from(const std::string& text) {
    long long tokens = 0;
    int top_k = 0, recorded = 0;
    require(std::sscanf(text.c_str(), "%lld,%d,%d", &tokens, &top_k, &recorded) == 3,
            "exchange case '{}': expected TOKENS,TOP_K,RECORDED", text);
    return {tokens, top_k, recorded != 0};
  }
};

// k draws without putting back.
inline std::vector<std::int32_t> uniform_experts(int rank, std::int64_t token, int top_k) {
  const auto key =
      random_key(static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint64_t>(token), "token");
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < top_k; ++i) {
    ids.push_back(static_cast<std::int32_t>(random_permutation(key, kExchangedExperts, i)));
  }
  return ids;
}

inline RoutingPlan routing_of(const ExchangeCase& c, int rank) {
  RoutingPlan plan;
  plan.num_tokens = c.tokens;
  plan.num_choices = c.top_k;
  plan.num_experts = kExchangedExperts;
  std::optional<RecordedRouting> recorded;
  if (c.recorded) recorded.emplace();
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    std::vector<std::int32_t> ids;
    if (recorded) {
      for (int k = 0; k < c.top_k; ++k) ids.push_back(recorded->choice(rank * c.tokens + t, k));
    } else {
      ids = uniform_experts(rank, t, c.top_k);
    }
    plan.expert_ids.insert(plan.expert_ids.end(), ids.begin(), ids.end());
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
