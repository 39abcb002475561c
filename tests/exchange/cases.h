// cases.h: what the exchange is tried on. Everything follows from the case and a rank's number, so that every
// rank can rebuild every other rank's tokens without a message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/core/bf16.h"
#include "moesaic/core/dtype.h"
#include "moesaic/core/rng.h"
#include "moesaic/placement/placement.h"
#include "moesaic/routing/plan.h"

namespace moesaic::exchange_checks {

enum class Selection { kRandom, kAllToOne, kSomeUnused, kNothing };
enum class Tokens { kUneven, kNoneOnOneRank, kNoneAnywhere };

struct Case {
  std::string name;
  int num_experts, top_k;
  Selection selection = Selection::kRandom;
  Tokens tokens = Tokens::kUneven;
  bool random_table = false;  // else contiguous
  bool integers = false;      // payloads whose sums are exact
  std::int64_t width = 5;
};

inline const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"random", 13, 3},
      {"random table", 11, 4, Selection::kRandom, Tokens::kUneven, true},
      {"more choices than ranks", 16, 12},
      {"fewer experts than ranks", 2, 2, Selection::kRandom, Tokens::kUneven, true},
      {"integers", 13, 3, Selection::kRandom, Tokens::kUneven, false, true},
      {"wide", 9, 2, Selection::kRandom, Tokens::kUneven, true, false, 70},
      {"all to one", 8, 2, Selection::kAllToOne},
      {"none to some", 12, 3, Selection::kSomeUnused},
      {"all ids -1", 8, 2, Selection::kNothing},
      {"no tokens on one rank", 8, 3, Selection::kRandom, Tokens::kNoneOnOneRank},
      {"no tokens anywhere", 8, 3, Selection::kRandom, Tokens::kNoneAnywhere},
  };
  return all;
}

inline Placement placement_of(const Case& c, int world_size) {
  if (!c.random_table) return Placement::contiguous(c.num_experts, world_size, world_size);
  std::vector<int> table;
  for (int e = 0; e < c.num_experts; ++e) {
    table.push_back(static_cast<int>(random_bits(random_key(5, "table"), static_cast<std::uint64_t>(e)) %
                                     static_cast<std::uint64_t>(world_size)));
  }
  return Placement::from_table(table, world_size, world_size);
}

inline std::int64_t num_tokens_of(const Case& c, int rank, int world_size) {
  if (c.tokens == Tokens::kNoneAnywhere) return 0;
  if (c.tokens == Tokens::kNoneOnOneRank && rank == world_size / 2) return 0;
  return 4 + rank * 3 % 5;
}

// Weights: eighths from 0 to 7/8, so that sums of integers stay exact; 0 turns up and is not absent.
inline RoutingPlan plan_of(const Case& c, int rank, int world_size) {
  RoutingPlan plan;
  plan.num_tokens = num_tokens_of(c, rank, world_size);
  plan.num_choices = c.top_k;
  plan.num_experts = c.num_experts;
  for (std::int64_t t = 0; t < plan.num_tokens; ++t) {
    const auto key = random_key(static_cast<std::uint64_t>(rank * 1000 + t), c.name);
    for (int k = 0; k < c.top_k; ++k) {
      const auto bits = random_bits(key, static_cast<std::uint64_t>(k), 1);
      auto e = static_cast<std::int32_t>(random_permutation(key, c.num_experts, k));
      const bool dropped = bits % 5 == 0;
      if (dropped || c.selection == Selection::kNothing) e = -1;
      if (c.selection == Selection::kSomeUnused && e % 2 == 0) e = -1;
      if (c.selection == Selection::kAllToOne) e = k == 0 ? c.num_experts - 2 : -1;
      plan.expert_ids.push_back(e);
      const float weight = c.integers ? static_cast<float>(bits / 64 % 8) / 8
                                      : static_cast<float>(bits / 64 % 8) * random_uniform(key, 77);
      plan.weights.push_back(e < 0 ? 0.0f : weight);
    }
  }
  return plan;
}

// [T,D] of `purpose` ("x", "g"): small integers, or random numbers, representable in `dtype`.
inline std::vector<float> payload_of(const Case& c, const std::string& purpose, int rank, int world_size,
                                     DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(num_tokens_of(c, rank, world_size) * c.width));
  const auto key = random_key(static_cast<std::uint64_t>(rank), c.name + purpose);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = c.integers ? static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 5) % 7) - 3
                           : random_normal(key, i);
    if (dtype == DType::kBF16) values[i] = to_float(to_bf16(values[i]));
  }
  return values;
}

}  // namespace moesaic::exchange_checks
