#include <algorithm>
#include <limits>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

// A part is added slice by slice, while the slice is in the cache, and needs no more memory than two of them
// from each rank: one is received while the other is added. Slices of one part have a tag each, for they may
// finish, and so be posted, out of their order; hence at most as many as there are slots.
constexpr std::int64_t kSliceBytes = std::int64_t{1} << 18;
constexpr std::int64_t kMaxSlices = 64;
constexpr int kBanks = 2;
// Of one receiver. Enough to keep a link busy; few enough that looking at all messages costs nothing.
constexpr int kSendsUnderWay = 4;

// The slices of one rank's part; sender and receiver agree, for both know all counts.
struct Slices {
  Range part;
  std::int64_t bytes;  // of each but the last

  Slices(Range whole, std::int64_t element_bytes) : part(whole) {
    const std::int64_t elements = whole.bytes / element_bytes;
    bytes = std::max(kSliceBytes, (elements + kMaxSlices - 1) / kMaxSlices * element_bytes);
  }
  std::int64_t count() const { return std::max<std::int64_t>(1, (part.bytes + bytes - 1) / bytes); }
  Range at(std::int64_t s) const {
    return {part.buffer, part.offset + s * bytes, std::min(bytes, part.bytes - s * bytes)};
  }
};

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

Schedule reduce_scatter_v_schedule(const Topology& topology, int rank, DType wire,
                                   std::span<const std::int64_t> elements_per_rank,
                                   std::span<const std::int64_t> offsets) {
  const int world_size = topology.world_size();
  require_rank("reduce_scatter_v: rank", rank, world_size);
  require(wire == DType::kF32 || wire == DType::kBF16,
          "reduce_scatter_v: the wire must be fp32 or bf16, got {}", name_of(wire));
  const auto begin =
      placed_offsets("reduce_scatter_v", offsets, elements_per_rank, world_size, size_of(wire));
  const auto part = [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    return Range{BufferId::kInput, begin[at], elements_per_rank[at] * size_of(wire)};
  };
  std::vector<Slices> slices;
  std::int64_t most_slices = 0;
  for (int r = 0; r < world_size; ++r) {
    slices.emplace_back(part(r), size_of(wire));
    most_slices = std::max(most_slices, slices.back().count());
  }
  const Slices& own = slices[static_cast<std::size_t>(rank)];

  Schedule schedule;
  const std::int64_t bank_bytes = inbound_bytes(world_size, own.at(0));
  schedule.scratch_bytes = std::min<std::int64_t>(kBanks, own.count()) * bank_bytes;
  std::vector<std::int32_t> sums;
  std::vector<std::vector<std::int32_t>> sends(static_cast<std::size_t>(world_size));  // by receiver
  const auto next = [&] { return static_cast<std::int32_t>(schedule.ops.size()); };
  // What came kept slices before, where there is one.
  const auto before = [](const std::vector<std::int32_t>& ops, int kept) {
    const auto n = static_cast<std::ptrdiff_t>(ops.size());
    return n < kept ? std::vector<std::int32_t>{} : std::vector{ops[static_cast<std::size_t>(n - kept)]};
  };
  for (std::int64_t s = 0; s < most_slices; ++s) {
    const bool receives = s < own.count();
    const auto slot = static_cast<std::int32_t>(s);
    const auto range_of = [&](int from) {
      Range range = inbound(rank, from, own.at(s));
      if (from != rank) range.offset += (s % kBanks) * bank_bytes;
      return range;
    };
    std::vector<std::int32_t> received;
    for (int step = 1; step < world_size; ++step) {
      const int from = (rank + world_size - step) % world_size;
      const int to = (rank + step) % world_size;
      if (receives) {
        received.push_back(next());
        schedule.ops.push_back(receive_op(from, range_of(from), slot));
        schedule.ops.back().after = before(sums, kBanks);  // the bank is free
      }
      const Slices& theirs = slices[static_cast<std::size_t>(to)];
      if (s < theirs.count()) {
        auto& earlier = sends[static_cast<std::size_t>(to)];
        std::vector<std::int32_t> after = before(earlier, kSendsUnderWay);
        earlier.push_back(next());
        schedule.ops.push_back(send_op(to, theirs.at(s), slot));
        schedule.ops.back().after = std::move(after);
      }
    }
    if (!receives) continue;
    const auto in_fp32 = [&](std::int64_t bytes) { return bytes / size_of(wire) * size_of(DType::kF32); };
    const Range target{BufferId::kOutput, in_fp32(s * own.bytes), in_fp32(own.at(s).bytes)};
    sums.push_back(next());
    schedule.ops.push_back(
        sum_op(parts_in_order(topology, true, range_of), wire, DType::kF32, target, std::move(received)));
  }
  return schedule;
}

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
