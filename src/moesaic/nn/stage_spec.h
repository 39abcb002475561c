// stage_spec.h: the stages of a model and the units each one reads. No torch.
#pragma once

#include <vector>

#include "moesaic/nn/model_config.h"

namespace moesaic {

enum class StageKind { kEmbed, kLayer, kHead };
struct StageSpec {
  StageKind kind;
  int layer = -1;
  std::vector<int> units;  // indices into unit_specs(config), in the order run_stage expects
};
// The head of a model with tied embeddings lists the embedding's unit again, last.
std::vector<StageSpec> stage_specs(const ModelConfig& config);

}  // namespace moesaic
