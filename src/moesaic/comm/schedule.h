// schedule.h: a collective algorithm as data.
//
// An algorithm is a pure function from (topology, rank, counts) to one rank's list of operations. An
// operation starts when those it depends on have finished. The executor (executor.h) runs the list on
// a transport; a simulator can price the same list on a virtual clock.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moesaic/core/dtype.h"

namespace moesaic {

// A byte range of one of the buffers the schedule was given.
// kScratch is the executor's own; kStaging is a caller's that lives longer than one schedule.
enum class BufferId : std::uint8_t { kInput, kOutput, kScratch, kStaging };
struct Range {
  BufferId buffer;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

enum class OpKind : std::uint8_t {
  kSend,     // source -> peer
  kReceive,  // peer -> target
  kCopy,     // target = source
  kSum,      // target = sum of `parts` in the order and with the rounding of contract 1
  kNotify,   // tell the caller that `target`, a part of rank `peer`, is in (start work on it)
};

struct Op {
  OpKind kind;
  int peer = -1;          // rank in the group
  std::int32_t slot = 0;  // 0..63, tag within the schedule: equal on both ends of a message
  Range source{};
  Range target{};
  // kSum: parts[n] lists the ranges of node n's ranks, ascending. Each node's parts are added in fp32 and
  // rounded to `wire`; node sums are added in fp32 and stored as `result`. (fp64, int64: ordered_sum.h.)
  std::vector<std::vector<Range>> parts{};
  DType wire = DType::kF32;
  DType result = DType::kF32;
  std::vector<std::int32_t> after{};  // indices of earlier operations
};

struct Schedule {
  std::vector<Op> ops;
  std::int64_t scratch_bytes = 0;
};

}  // namespace moesaic
