// memory_plan.h: what a run will keep in memory, before anything is allocated. No torch.
//
// Local, pure arithmetic: works for any model at any world size. Figures are bytes on the rank that holds
// most. Everything but `activations` is exact; that one is an estimate from the shapes saved for backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moesaic/comm/topology.h"
#include "moesaic/nn/model_config.h"
#include "moesaic/shard/parallel.h"

namespace moesaic {

struct MemoryPlan {
  std::int64_t parameters = 0;         // elements of the whole model
  std::int64_t active_parameters = 0;  // elements one token uses
  std::int64_t masters = 0;            // fp32 shards
  std::int64_t images = 0;             // the shards in the compute dtype, where it is not fp32
  std::int64_t gradients = 0;          // fp32 shards, and the landing buffer of the reduce
  std::int64_t moments = 0;            // optimizer state
  std::int64_t references = 0;   // what coded gathers keep from step to step; of `momentum` where left open
  std::int64_t gathered = 0;     // weights and gradients of whole units in flight at the fullest moment
  std::int64_t activations = 0;  // of one micro-step
  std::int64_t total() const {
    return masters + images + gradients + moments + references + gathered + activations;
  }
};

// moments_per_element: 2 for AdamW, 1 for SGD with momentum. tokens_per_rank: of one micro-step. recomputed:
// layers that keep only their input between forward and backward, [num_layers] or empty for none.
MemoryPlan plan_memory(const ModelConfig& config, const ParallelOptions& options, const Topology& topology,
                       std::int64_t moments_per_element, std::int64_t tokens_per_rank,
                       const std::vector<bool>& recomputed = {});

// A table for people: one line per row, with MiB.
std::string describe(const MemoryPlan& plan, int world_size);

}  // namespace moesaic
