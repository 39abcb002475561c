#include "moesaic/exchange/move_blocks.h"

#include "moesaic/comm/executor.h"
#include "moesaic/core/buffer.h"

namespace moesaic {

std::vector<std::int64_t> scaled(std::span<const std::int64_t> counts, std::int64_t bytes_each) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(counts.size());
  for (const std::int64_t count : counts) bytes.push_back(count * bytes_each);
  return bytes;
}

std::vector<std::int64_t> transposed(std::span<const std::int64_t> matrix, int group_size) {
  const auto size = static_cast<std::size_t>(group_size);
  std::vector<std::int64_t> result(matrix.size());
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) result[to * size + from] = matrix[from * size + to];
  }
  return result;
}

BlockBytes bytes_of_rows(const ExchangeCounts& counts, std::int64_t bytes_per_row, int group_size,
                         bool back) {
  const auto rows = scaled(counts.rows, bytes_per_row);
  return {.of_ranks = back ? transposed(rows, group_size) : rows,
          .of_nodes = scaled(counts.node_rows, bytes_per_row)};
}

Places places_by_rank(std::span<const std::int64_t> bytes_of_rank) {
  Places places;
  for (const std::int64_t bytes : bytes_of_rank) {
    places.begin.of_ranks.push_back(places.bytes);
    places.bytes += bytes;
  }
  return places;
}

Places places_at_source(Route route, const Topology& topology, int rank, const ExchangeCounts& counts,
                        std::int64_t bytes_per_row) {
  const int size = topology.world_size(), num_nodes = topology.num_nodes(), home = topology.node_of(rank);
  Places places{.begin = {.of_ranks = std::vector<std::int64_t>(static_cast<std::size_t>(size), 0),
                          .of_nodes = std::vector<std::int64_t>(static_cast<std::size_t>(num_nodes), 0)}};
  const auto add_ranks = [&](int node) {
    for (const int r : topology.ranks_of(node)) {
      places.begin.of_ranks[static_cast<std::size_t>(r)] = places.bytes;
      if (r != rank) places.bytes += counts.rows[static_cast<std::size_t>(rank * size + r)] * bytes_per_row;
    }
  };
  add_ranks(home);
  for (int node = 0; node < num_nodes; ++node) {
    if (node == home) continue;
    if (route != Route::kRailDedup) {
      add_ranks(node);
      continue;
    }
    places.begin.of_nodes[static_cast<std::size_t>(node)] = places.bytes;
    places.bytes += counts.node_rows[static_cast<std::size_t>(rank * num_nodes + node)] * bytes_per_row;
  }
  return places;
}

const std::byte* BlockMemory::read(const Range& range) const {
  return range.buffer == BufferId::kInput ? input.data() + range.offset : write(range);
}
std::byte* BlockMemory::write(const Range& range) const {
  return (range.buffer == BufferId::kStaging ? staging : output).data() + range.offset;
}

void move_blocks(Communicator& group, std::string_view name, const Steps& steps, const BlockBytes& bytes,
                 const BlockPlaces& from, std::span<const std::byte> input, const BlockPlaces& to,
                 std::span<std::byte> output, const OnNodeWork& node_work) {
  const BlockSchedule plan = block_schedule(group.topology(), group.rank(), steps, bytes, from, to);
  Buffer staging(plan.staging_bytes);
  const BlockMemory memory{input, output, staging.span()};
  execute(group, name, plan.schedule, {input, output, staging.span()},
          [&](const Op& op) { node_work(plan.work_for(op.peer), memory); });
}

}  // namespace moesaic
