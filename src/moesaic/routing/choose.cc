#include <algorithm>
#include <cmath>

#include "moesaic/core/error.h"
#include "moesaic/kernels/softmax_top_k.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

std::size_t check_input(const GateOptions& options, const GateInput& input) {
  validate(options);
  const Gate& gate = gate_named(options.name);
  const std::size_t num_tokens = gate.has_router ? rows_of(options, input.logits) : input.token_ids.size();
  require(input.mask.empty() || input.mask.size() == num_tokens,
          "gate: mask of {} tokens, expected {} (or none)", input.mask.size(), num_tokens);
  require(input.state.empty() || state_of(options, 1).size > 0,
          "gate: a state of {} values is given, but {} as it is configured keeps none", input.state.size(),
          gate.name);
  return num_tokens;
}

// Padding comes first: what its logits hold is nobody's concern.
Choices classify(const GateOptions& options, const GateInput& input, std::size_t num_tokens) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  Choices choices;
  choices.num_tokens = static_cast<std::int64_t>(num_tokens);
  choices.valid.assign(num_tokens, 0);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    if (!input.mask.empty() && !input.mask[t]) {
      ++choices.masked_tokens;
      continue;
    }
    const auto row = input.logits.empty() ? input.logits : input.logits.subspan(t * num_experts, num_experts);
    if (!std::all_of(row.begin(), row.end(), [](float h) { return std::isfinite(h); })) {
      if (choices.non_finite_tokens++ == 0) choices.first_non_finite = static_cast<std::int64_t>(t);
      continue;
    }
    choices.valid[t] = 1;
    ++choices.valid_tokens;
  }
  return choices;
}

void count(const GateOptions& options, Choices& choices) {
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  const auto rounds = static_cast<std::size_t>(choices.rounds),
             k = static_cast<std::size_t>(choices.num_choices);
  choices.counts.assign(rounds * num_experts, 0);
  for (std::size_t i = 0; i < choices.expert_ids.size(); ++i) {
    const std::int32_t e = choices.expert_ids[i];
    if (e >= 0) ++choices.counts[i % k % rounds * num_experts + static_cast<std::size_t>(e)];
  }
}

// Moves each token's choices to the front and cuts K to the most that a token has.
void pack(Choices& choices) {
  const auto k = static_cast<std::size_t>(choices.num_choices);
  std::size_t most = 1;
  for (std::size_t begin = 0; begin < choices.expert_ids.size(); begin += k) {
    const auto row = std::span(choices.expert_ids).subspan(begin, k);
    const auto end = std::stable_partition(row.begin(), row.end(), [](std::int32_t e) { return e >= 0; });
    most = std::max(most, static_cast<std::size_t>(end - row.begin()));
  }
  std::vector<std::int32_t> packed;
  packed.reserve(static_cast<std::size_t>(choices.num_tokens) * most);
  for (std::size_t begin = 0; begin < choices.expert_ids.size(); begin += k) {
    packed.insert(packed.end(), choices.expert_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                  choices.expert_ids.begin() + static_cast<std::ptrdiff_t>(begin + most));
  }
  choices.expert_ids = std::move(packed);
  choices.num_choices = static_cast<std::int64_t>(most);
}

// The largest logits, and what their softmax gives beside.
void choose_by_softmax(const GateOptions& options, const GateInput& input, Choices& choices) {
  const std::int64_t tokens = choices.num_tokens, k = choices.num_choices, groups = input.sum_groups;
  require(groups >= 0 && (groups == 0 ? tokens == 0 : tokens % groups == 0),
          "gate: {} tokens in {} sequences, expected a multiple", tokens, groups);
  choices.probabilities.resize(static_cast<std::size_t>(tokens * k));
  choices.log_sums.resize(static_cast<std::size_t>(tokens));
  choices.probability_sums.assign(static_cast<std::size_t>(groups * options.num_experts), 0.0f);
  std::vector<float> logits(choices.probabilities.size());  // of the choices
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t length = tokens / groups, first = group * length;
    kernels::softmax_top_k(input.logits.data() + first * options.num_experts, length, options.num_experts, k,
                           choices.valid.data() + first,
                           {choices.expert_ids.data() + first * k, logits.data() + first * k,
                            choices.probabilities.data() + first * k, choices.log_sums.data() + first,
                            choices.probability_sums.data() + group * options.num_experts});
  }
}

}  // namespace

Choices choose(const GateOptions& options, const GateInput& input) {
  const std::size_t num_tokens = check_input(options, input);
  const Gate& gate = gate_named(options.name);
  const bool by_softmax = gate.by_softmax != nullptr && gate.by_softmax(options);
  require(by_softmax || gate.choose != nullptr, "gate: {} chooses for all tokens together, see assign()",
          gate.name);
  Choices choices = classify(options, input, num_tokens);
  const std::int64_t k = max_choices(options);
  choices.num_choices = k;
  choices.expert_ids.resize(num_tokens * static_cast<std::size_t>(k));

  GateInput seen = input;
  std::vector<float> finite;  // without what gates do not take
  if (gate.has_router && choices.valid_tokens < choices.num_tokens) {
    finite.assign(input.logits.begin(), input.logits.end());
    const auto num_experts = static_cast<std::size_t>(options.num_experts);
    for (std::size_t t = 0; t < num_tokens; ++t) {
      if (!choices.valid[t])
        std::fill_n(finite.begin() + static_cast<std::ptrdiff_t>(t * num_experts), num_experts, 0.0f);
    }
    seen.logits = finite;
  }
  if (by_softmax) {
    choose_by_softmax(options, seen, choices);
  } else {
    gate.choose(options, seen, choices.expert_ids);
  }
  for (std::size_t t = 0; t < num_tokens; ++t) {
    const auto row =
        std::span(choices.expert_ids).subspan(t * static_cast<std::size_t>(k), static_cast<std::size_t>(k));
    if (!choices.valid[t]) std::fill(row.begin(), row.end(), -1);
  }
  if (gate.leave_out && input.training) {
    choices.before_leaving_out = choices.expert_ids;
    gate.leave_out(options, seen, choices.expert_ids);
    if (choices.before_leaving_out == choices.expert_ids) choices.before_leaving_out.clear();
  }
  if (!gate.ordered) pack(choices);
  choices.rounds = gate.ordered ? choices.num_choices : 1;
  count(options, choices);
  return choices;
}

ValidTokens valid_tokens(const GateOptions& options, const GateInput& input) {
  const std::size_t num_tokens = check_input(options, input);
  const auto num_experts = static_cast<std::size_t>(options.num_experts);
  ValidTokens valid;
  valid.choices = classify(options, input, num_tokens);
  for (std::size_t t = 0; t < num_tokens; ++t) {
    if (!valid.choices.valid[t]) continue;
    valid.token.push_back(static_cast<std::int64_t>(t));
    const auto row = input.logits.subspan(t * num_experts, num_experts);
    valid.logits.insert(valid.logits.end(), row.begin(), row.end());
  }
  return valid;
}

Choices choose_together(const GateOptions& options, ValidTokens valid,
                        const std::vector<std::vector<std::int32_t>>& experts_of) {
  require(experts_of.size() == valid.token.size(), "gate: experts of {} tokens, expected {}",
          experts_of.size(), valid.token.size());
  Choices choices = std::move(valid.choices);
  choices.num_choices = 1;
  for (const auto& experts : experts_of) {
    choices.num_choices = std::max(choices.num_choices, static_cast<std::int64_t>(experts.size()));
  }
  choices.rounds = 1;
  choices.expert_ids.assign(static_cast<std::size_t>(choices.num_tokens * choices.num_choices), -1);
  for (std::size_t i = 0; i < experts_of.size(); ++i) {
    std::copy(experts_of[i].begin(), experts_of[i].end(),
              choices.expert_ids.begin() + valid.token[i] * choices.num_choices);
  }
  count(options, choices);
  return choices;
}

}  // namespace moesaic
