// dump_routing.h: which experts a model's tokens choose, in a file.
#pragma once

#include <cstdint>
#include <filesystem>

#include "moesaic/nn/gate_states.h"
#include "moesaic/shard/sharded_model.h"
#include "moesaic/train/data.h"

namespace moesaic {

// Writes "tokens" [B,S] int64 and for each MoE layer "layers.N.experts" [B*S,K] int64, the plan's choices in
// order of preference (-1: none, or no room), of the first B held-out windows: as many as make `most_tokens`,
// at least one. Collective; rank 0 reads, computes and writes, the others join with zero tokens.
void dump_routing(ShardedModel& model, const GateStates& gates, const Dataset& dataset,
                  std::int64_t most_tokens, const std::filesystem::path& file);

}  // namespace moesaic
