// config_schema.h: the fields of a Config: names, meaning, units, allowed values. A new key is added here and
// in config.h.
#pragma once

#include "moesaic/core/schema.h"
#include "moesaic/train/config.h"

namespace moesaic {

// Bound to `config`, which must outlive the result.
Schema config_schema(Config& config);

// The keys that a single MoE layer may have otherwise, in one section of that name.
Schema layer_schema(MoeConfig& moe, std::string name);

}  // namespace moesaic
