// moe_schema.h: the keys of [moe], which a single layer may have otherwise. Local.
#pragma once

#include "moesaic/core/schema.h"
#include "moesaic/nn/model_config.h"

namespace moesaic {

// Bound to `moe`, which must outlive the result.
SchemaSection moe_section(MoeConfig& moe);

}  // namespace moesaic
