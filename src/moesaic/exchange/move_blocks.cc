#include "moesaic/exchange/move_blocks.h"

#include <string>

#include "moesaic/comm/executor.h"
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

BlockBytes bytes_of_rows(const RowCounts& counts, std::int64_t bytes_per_row, int group_size, bool back) {
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

Places places_at_source(Route route, const Topology& topology, int rank, const RowCounts& counts,
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
                 const BlockEnds& ends, const OnNodeWork& node_work) {
  MovingBlocks(group, /*background=*/false, name, steps, bytes, ends, node_work);
}

MovingBlocks::MovingBlocks(Communicator& group, bool background, std::string_view name, const Steps& steps,
                           const BlockBytes& bytes, const BlockEnds& ends, OnNodeWork node_work)
    : work_(std::make_unique<Work>()) {
  Work& work = *work_;
  work.plan = block_schedule(group.topology(), group.rank(), steps, bytes, ends.from, ends.to);
  work.staging = Buffer(work.plan.staging_bytes);
  work.memory = {ends.input, ends.output, work.staging.span()};
  work.on_node = std::move(node_work);
  const ScheduleBuffers buffers{ends.input, ends.output, work.staging.span()};
  auto on_notify = [&work](const Op& op) { work.on_node(work.plan.work_for(op.peer), work.memory); };
  if (background) {
    pending_ =
        start(group, std::string(name), std::move(work.plan.schedule), buffers, std::move(on_notify), name);
  } else {
    execute(group, name, work.plan.schedule, buffers, on_notify);
  }
}

}  // namespace moesaic
