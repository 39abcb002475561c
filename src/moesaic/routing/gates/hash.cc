// hash: a table from token id to expert. Roller et al. 2021 (arXiv 2106.04426).
#include <algorithm>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/core/rng.h"
#include "moesaic/routing/gate_form.h"

namespace moesaic {
namespace {

void look_up(const GateOptions& options, const GateInput& input, std::span<std::int32_t> ids) {
  const auto size = static_cast<std::int64_t>(input.state.size());
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const std::int64_t token = input.token_ids[t];
    require(token >= 0 && token < size, "gate: token id {} with a hash table of {}", token, size);
    const float e = input.state[static_cast<std::size_t>(token)];
    ids[t] = static_cast<std::int32_t>(e);
    require(ids[t] >= 0 && ids[t] < options.num_experts && e == static_cast<float>(ids[t]),
            "gate: the hash table sends token id {} to expert {}, expected 0 to {}", token, e,
            options.num_experts - 1);
  }
}

// Frequent tokens first, each to the expert with the least so far: every expert sees about as many tokens.
// Equally frequent tokens come in a random order.
std::vector<float> balanced_table(const GateOptions& options, const StateSource& source, std::uint64_t key) {
  require(static_cast<std::int64_t>(source.token_counts.size()) == source.vocab_size,
          "gate: a balanced hash table needs the counts of {} token ids, got {}", source.vocab_size,
          source.token_counts.size());
  const auto vocab = static_cast<std::size_t>(source.vocab_size);
  std::vector<std::size_t> order(vocab);
  for (std::size_t i = 0; i < vocab; ++i) {
    order[i] =
        static_cast<std::size_t>(random_permutation(key, source.vocab_size, static_cast<std::int64_t>(i)));
  }
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return source.token_counts[a] > source.token_counts[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(options.num_experts), 0);
  std::vector<float> table(vocab);
  for (const std::size_t token : order) {
    const auto least = std::ranges::min_element(load);
    // One more, so that tokens never seen are spread as well.
    *least += source.token_counts[token] + 1;
    // Which expert that is differs from layer to layer.
    table[token] = static_cast<float>(random_permutation(key, options.num_experts, least - load.begin()));
  }
  return table;
}

std::vector<float> make_table(const GateOptions& options, const StateSource& source) {
  const std::uint64_t key =
      random_bits(random_key(source.seed, "hash table"), static_cast<std::uint64_t>(source.layer));
  if (options.hash_table == HashTable::kBalanced) return balanced_table(options, source, key);
  std::vector<float> table(static_cast<std::size_t>(source.vocab_size));
  for (std::size_t token = 0; token < table.size(); ++token) {
    table[token] =
        static_cast<float>(random_bits(key, token) % static_cast<std::uint64_t>(options.num_experts));
  }
  return table;
}

}  // namespace

extern const Gate kHashGate;
const Gate kHashGate{
    .name = "hash",
    .top_k = 1,
    .own_options = {"hash_table"},
    .has_router = false,
    .choose = look_up,
    .weighing = [](const GateOptions&) { return Weighing{.score = ScoreKind::kOne}; },
    .balance = [](const GateOptions&) { return Balance{}; },
    // Expert ids are exact in fp32 up to 2^24.
    .state =
        [](const GateOptions&, std::int64_t vocab_size) {
          return GateState{"hash_table", vocab_size};
        },
    .first_state = make_table,
    .reads_token_counts =
        [](const GateOptions& options) { return options.hash_table == HashTable::kBalanced; },
};

}  // namespace moesaic
