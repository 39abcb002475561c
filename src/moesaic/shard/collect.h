// collect.h: bring a unit's sharded state (masters, a moment, a gradient) together as whole tensors.
//
// Each block of a unit has one writer: of dense units rank (unit number mod W), of expert units one of the
// block's owners. Collective over the world, unit by unit, same order everywhere; a writer holds one block at
// a time.
#pragma once

#include <optional>
#include <span>

#include "moesaic/comm/communicator.h"
#include "moesaic/core/buffer.h"
#include "moesaic/shard/unit_layout.h"

namespace moesaic {

// World rank that writes `block` of unit number `unit`.
int writer_of(const UnitLayout& layout, int unit, int block);

// The block `rank` writes of this unit, if any (at most one).
std::optional<int> block_written_by(const UnitLayout& layout, int unit, int rank);

// `shard`: this rank's part, fp32. The writer gets the whole block (fp32, block_elements), others an empty
// buffer.
Buffer collect_block(Communicator& world, const UnitLayout& layout, int unit, std::span<const float> shard);

}  // namespace moesaic
