// dump_logits.h: a model's logits in a file, to compare with another framework's.
#pragma once

#include <filesystem>
#include <vector>

#include "moesaic/nn/gate_states.h"
#include "moesaic/shard/sharded_model.h"
#include "moesaic/train/data.h"

namespace moesaic {

// Writes "tokens" [B,S] int64 and "logits" [B,S,V] fp32 of the first B held-out windows, B = min(8, all).
// Collective; rank 0 reads, computes and writes, the others join with zero tokens.
void dump_logits(ShardedModel& model, const GateStates& gates, const Dataset& dataset,
                 const std::filesystem::path& file);

}  // namespace moesaic
