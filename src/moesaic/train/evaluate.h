// evaluate.h: the loss of a model on held-out text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/nn/gate_states.h"
#include "moesaic/shard/sharded_model.h"
#include "moesaic/train/data.h"

namespace moesaic {

struct HeldOutLoss {
  std::string name;  // of the file, or "all"
  double loss;       // nats per target token
  std::int64_t tokens;
};

// Mean loss on the held-out part of each file, then over all of them ("all"), in windows of data.seq_len; at
// most about max_tokens tokens per file (0 = all). batch_tokens: of all ranks at a time. Collective; the same
// values on all ranks, in every layout to rounding. Routing, capacity included, works as in training on
// batches of this size.
std::vector<HeldOutLoss> evaluate_held_out(ShardedModel& model, const GateStates& gates,
                                           const Dataset& dataset, std::int64_t batch_tokens,
                                           std::int64_t max_tokens);

}  // namespace moesaic
