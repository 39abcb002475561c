#include <limits>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

// A list per node, or one list of all ranks, where `range_of(rank)` says where a rank's part lies.
template <typename RangeOf>
std::vector<std::vector<Range>> parts_in_order(const Topology& topology, bool by_node, RangeOf range_of) {
  std::vector<std::vector<Range>> parts;
  if (by_node) {
    for (int node = 0; node < topology.num_nodes(); ++node) {
      auto& of_node = parts.emplace_back();
      for (const int rank : topology.ranks_of(node)) of_node.push_back(range_of(rank));
    }
  } else {
    auto& of_all = parts.emplace_back();
    for (int rank = 0; rank < topology.world_size(); ++rank) of_all.push_back(range_of(rank));
  }
  return parts;
}

// Where the part of rank `from` waits to be added: the own one in kInput, the others' back to back in
// scratch.
Range inbound(int rank, int from, Range own) {
  if (from == rank) return own;
  return {BufferId::kScratch, (from < rank ? from : from - 1) * own.bytes, own.bytes};
}

std::int64_t inbound_bytes(int world_size, Range own) {
  require(own.bytes <= std::numeric_limits<std::int64_t>::max() / world_size,
          "a sum over {} ranks of {} bytes each exceeds 2^63 - 1 bytes", world_size, own.bytes);
  return own.bytes * (world_size - 1);
}

}  // namespace

Schedule all_reduce_schedule(const Topology& topology, int rank, DType dtype, std::int64_t count) {
  const int world_size = topology.world_size();
  require_rank("all_reduce: rank", rank, world_size);
  require(dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kI64,
          "all_reduce: values must be fp32, fp64 or int64, got {}", name_of(dtype));
  require(count >= 0 && count <= std::numeric_limits<std::int64_t>::max() / size_of(dtype),
          "all_reduce: {} elements; expected 0 or more, and less than 2^63 bytes", count);
  const Range own{BufferId::kInput, 0, count * size_of(dtype)};
  Schedule schedule;
  schedule.scratch_bytes = inbound_bytes(world_size, own);
  const auto range_of = [&](int from) { return inbound(rank, from, own); };
  // The sum waits for the sends too: its target may be the memory they read.
  std::vector<std::int32_t> messages;
  for (int step = 1; step < world_size; ++step) {
    const int from = (rank + world_size - step) % world_size;
    for (Op& op :
         std::vector<Op>{receive_op(from, range_of(from)), send_op((rank + step) % world_size, own)}) {
      messages.push_back(static_cast<std::int32_t>(schedule.ops.size()));
      schedule.ops.push_back(std::move(op));
    }
  }
  schedule.ops.push_back(sum_op(parts_in_order(topology, dtype == DType::kF32, range_of), dtype, dtype,
                                {BufferId::kOutput, 0, own.bytes}, std::move(messages)));
  return schedule;
}

}  // namespace moesaic
