// node_rows.h: the row work of kRailDedup at the rank that stands for a source in its node.
//
// Local. A source's rows for the node lie back to back, each once; Forwarded says which of them each rank
// has.
#pragma once

#include "moesaic/core/dtype.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/move_blocks.h"

namespace moesaic {

// Each rank's rows to its range.
void spread_rows(const NodeWork& work, const BlockMemory& memory,
                 std::span<const DispatchHandle::Forwarded> forwarded, std::int64_t bytes_per_row);

// Each row's sum over the node's ranks, ascending, in fp32, rounded once to `wire`.
void sum_rows_of_node(const NodeWork& work, const BlockMemory& memory,
                      std::span<const DispatchHandle::Forwarded> forwarded, DType wire, std::int64_t width);

}  // namespace moesaic
