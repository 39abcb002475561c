// ordered_sum.h: the sum of contract 1 over parts that lie in memory.
//
// Local. parts[n][r]: `count` elements of `wire` from the r-th rank of node n. fp32 and bf16: a node's parts
// are added in fp32, ascending, starting from the first, and rounded to `wire`; node sums are added in fp32,
// ascending, and stored as `result` (fp32 or bf16). fp64 and int64 (result = wire): parts are added one after
// the other in that type, int64 wrapping. No parts at all: zeros. Each part is read once and the target
// written once; sums stay in registers. Parts need no alignment. `target` may be one of the parts when wire =
// result; else it must not overlap them.
//
// It lives here and not in kernels because its order and rounding are those of a schedule's kSum, and comm
// may use core only; the vectors it shares with kernels are core's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moesaic/core/dtype.h"

namespace moesaic {

void ordered_sum(DType wire, const std::vector<std::vector<const std::byte*>>& parts, std::int64_t count,
                 DType result, std::byte* target);

// The same, readable: the oracle.
namespace reference {
void ordered_sum(DType wire, const std::vector<std::vector<const std::byte*>>& parts, std::int64_t count,
                 DType result, std::byte* target);
}

}  // namespace moesaic
