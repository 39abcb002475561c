#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/kernels/top_k.h"
#include "moesaic/routing/gate.h"
#include "moesaic/routing/score.h"

namespace moesaic {
namespace {

enum class TokenKind : std::uint8_t { kValid, kMasked, kNonFinite };

// Padding comes first: what its logits hold is nobody's concern.
std::vector<TokenKind> classify(std::span<const float> logits, std::int64_t num_experts,
                                std::span<const std::uint8_t> mask, std::int64_t num_tokens) {
  std::vector<TokenKind> kinds(static_cast<std::size_t>(num_tokens), TokenKind::kValid);
  for (std::size_t t = 0; t < kinds.size(); ++t) {
    if (!mask.empty() && !mask[t]) {
      kinds[t] = TokenKind::kMasked;
      continue;
    }
    const auto row =
        logits.subspan(t * static_cast<std::size_t>(num_experts), static_cast<std::size_t>(num_experts));
    if (!std::all_of(row.begin(), row.end(), [](float h) { return std::isfinite(h); })) {
      kinds[t] = TokenKind::kNonFinite;
    }
  }
  return kinds;
}

// What selection compares, [T,E]. Tokens that get no expert have zeros: the kernel does not take NaN.
std::vector<float> selection_scores(const GateOptions& options, std::span<const float> logits,
                                    std::span<const float> bias, std::span<const TokenKind> kinds) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  std::vector<float> scores(logits.size(), 0.0f);
  for (std::size_t t = 0; t < kinds.size(); ++t) {
    if (kinds[t] != TokenKind::kValid) continue;
    for (std::size_t e = 0; e < num_experts; ++e) {
      const float h = logits[t * num_experts + e];
      const float s = options.score == ScoreKind::kSigmoid ? sigmoid(h) : h;
      scores[t * num_experts + e] = bias.empty() ? s : s + bias[e];
    }
  }
  return scores;
}

}  // namespace

Choices choose(const GateOptions& options, std::span<const float> logits, std::span<const float> bias,
               std::span<const std::uint8_t> mask) {
  validate(options);
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto top_k = static_cast<std::size_t>(options.top_k);
  require(logits.size() % num_experts == 0, "gate: {} logits, expected a multiple of num_experts ({})",
          logits.size(), num_experts);
  const std::size_t num_tokens = logits.size() / num_experts;
  require(mask.empty() || mask.size() == num_tokens, "gate: mask of {} tokens, expected {} (or none)",
          mask.size(), num_tokens);
  require(bias.empty() || options.bias_balance, "gate: a selection bias is given, but bias_balance is off");
  require(bias.empty() || bias.size() == num_experts, "gate: bias of {} experts, expected {} (or none)",
          bias.size(), num_experts);
  for (std::size_t e = 0; e < bias.size(); ++e) {
    require(std::isfinite(bias[e]), "gate: the bias of expert {} is {}, expected a finite number", e,
            bias[e]);
  }

  Choices choices;
  choices.num_tokens = static_cast<std::int64_t>(num_tokens);
  choices.expert_ids.resize(num_tokens * top_k);
  choices.counts.assign(top_k * num_experts, 0);
  const auto kinds = classify(logits, options.num_experts, mask, choices.num_tokens);
  const bool all_valid =
      std::all_of(kinds.begin(), kinds.end(), [](TokenKind kind) { return kind == TokenKind::kValid; });
  std::vector<float> scores;
  if (options.score == ScoreKind::kSigmoid || !all_valid) {
    scores = selection_scores(options, logits, bias, kinds);
  }
  std::vector<float> best(num_tokens * top_k);
  kernels::top_k(scores.empty() ? logits.data() : scores.data(), choices.num_tokens, options.num_experts,
                 options.top_k, choices.expert_ids.data(), best.data());

  for (std::size_t t = 0; t < num_tokens; ++t) {
    const auto ids = std::span(choices.expert_ids).subspan(t * top_k, top_k);
    if (kinds[t] == TokenKind::kValid) {
      ++choices.valid_tokens;
      for (std::size_t k = 0; k < top_k; ++k) {
        ++choices.counts[k * num_experts + static_cast<std::size_t>(ids[k])];
      }
      continue;
    }
    std::fill(ids.begin(), ids.end(), -1);
    if (kinds[t] == TokenKind::kMasked) {
      ++choices.masked_tokens;
    } else {
      if (choices.non_finite_tokens++ == 0) choices.first_non_finite = static_cast<std::int64_t>(t);
    }
  }
  return choices;
}

}  // namespace moesaic
