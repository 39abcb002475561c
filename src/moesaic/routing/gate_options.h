// gate_options.h: what a layer's gate can be told. Local. Which gate takes what: docs/gates.md.
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

enum class Normalise { kPaper, kNone, kBeforeDrop, kAfterDrop };  // kPaper: as the gate's paper has it
enum class ScoreKind { kSoftmax, kSigmoid, kOne };                // kOne: every choice weighs 1 (hash)
enum class CapacityScope { kGlobal, kRank };
enum class Priority { kOrder, kScore };
enum class BalanceScope { kGlobal, kRank, kSequence };
enum class OnNonFinite { kError, kDrop };
enum class HashTable { kBalanced, kRandom };
enum class Cooling { kLinear, kExponential };

struct GateOptions {
  std::string name = "top_k";  // of a registered gate
  std::int64_t num_experts = 8;
  std::int64_t top_k = 2;
  Normalise normalise = Normalise::kPaper;
  ScoreKind score = ScoreKind::kSoftmax;
  double route_scale = 1.0;      // factor on normalised sigmoid weights; 1 elsewhere
  double capacity_factor = 0.0;  // 0 = dropless
  std::int64_t min_capacity = 0;
  CapacityScope capacity_scope = CapacityScope::kGlobal;
  Priority priority = Priority::kOrder;  // who gets the slots of an expert that too many want
  OnNonFinite non_finite = OnNonFinite::kError;

  bool bias_balance = false;
  double bias_update_rate = 0.001;
  bool bias_centred = false;

  // Consecutive experts form a group: top_k with sigmoid scores keeps `kept_groups` of them, sam keeps one.
  std::int64_t num_groups = 1;
  std::int64_t kept_groups = 1;
  double alignment_loss = 0.01;  // coefficient; sam

  bool random_second = false;  // gshard: the second choice stays with probability min(1, 2 w2), in training

  HashTable hash_table = HashTable::kBalanced;

  // dense_to_sparse
  double threshold = 0.001;
  double first_temperature = 2.0, last_temperature = 0.3;
  std::int64_t cooling_steps = 1000;
  Cooling cooling = Cooling::kLinear;
  std::int64_t sparse_after = 0;  // steps; from then on one expert per token; 0 = never
};

// Throws InvalidArgument naming the option, what was got and what is allowed.
void validate(const GateOptions& options);

// Rows an expert may take: clamp(ceil(capacity_factor * K * T / E), min_capacity, T); -1 when dropless. T =
// valid tokens over the scope.
std::int64_t expert_capacity(const GateOptions& options, std::int64_t valid_tokens);

}  // namespace moesaic
