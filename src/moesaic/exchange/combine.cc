#include <algorithm>
#include <cstring>
#include <numeric>

#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/error.h"
#include "moesaic/exchange/chunks.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/moving_rows.h"
#include "moesaic/exchange/node_rows.h"
#include "moesaic/exchange/rows.h"

namespace moesaic {
namespace {

void require_summable(std::string_view what, DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kBF16, "combine: {} is {}, expected fp32 or bf16", what,
          name_of(dtype));
}

// Rows that came home from one rank, or as the sums of one node; tokens ascend.
struct Part {
  int node;
  const std::byte* data;
  std::span<const std::int64_t> tokens;
};

// They by token; those of one token by node, then rank: the order of their sum.
struct Arrivals {
  struct Row {
    const std::byte* data;
    int node;
  };
  std::vector<std::size_t> begin;  // [T+1]
  std::vector<Row> rows;

  // `parts` by node, then rank; of tokens from `first_token` on.
  Arrivals(std::int64_t first_token, std::int64_t num_tokens, const std::vector<Part>& parts,
           std::int64_t bytes_per_row)
      : begin(static_cast<std::size_t>(num_tokens) + 1, 0) {
    std::size_t num_rows = 0;
    for (const Part& part : parts) {
      num_rows += part.tokens.size();
      for (const std::int64_t t : part.tokens) ++begin[static_cast<std::size_t>(t - first_token) + 1];
    }
    rows.resize(num_rows);
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    auto next = begin;
    for (const Part& part : parts) {
      const std::byte* row = part.data;
      for (const std::int64_t t : part.tokens) {
        rows[next[static_cast<std::size_t>(t - first_token)]++] = {row, part.node};
        row += bytes_per_row;
      }
    }
  }
};

// What lies in `home` (places_at_source) and the own rows at `mine`, of one chunk.
std::vector<Part> parts_at_home(const Topology& topology, int self, const DispatchHandle& handle,
                                std::size_t chunk, const Places& places, const std::byte* home,
                                const std::byte* mine) {
  std::vector<Part> parts;
  for (int node = 0; node < topology.num_nodes(); ++node) {
    if (handle.route == Route::kRailDedup && node != topology.node_of(self)) {
      parts.push_back({node, home + places.begin.of_nodes[static_cast<std::size_t>(node)],
                       tokens_for_node(handle, topology, self, chunk, node)});
      continue;
    }
    for (const int r : topology.ranks_of(node)) {
      parts.push_back({node, r == self ? mine : home + places.begin.of_ranks[static_cast<std::size_t>(r)],
                       tokens_for_rank(handle, self, chunk, r)});
    }
  }
  return parts;
}

void sum_rows(const Topology& topology, const Arrivals& arrivals, DType wire, const Rows& y) {
  const std::int64_t target_bytes = row_bytes(y.dtype, y.width);
  auto* target = static_cast<std::byte*>(y.data);
  std::vector<std::vector<const std::byte*>> parts(static_cast<std::size_t>(topology.num_nodes()));
  for (std::size_t t = 0; t + 1 < arrivals.begin.size(); ++t, target += target_bytes) {
    const auto rows =
        std::span(arrivals.rows).subspan(arrivals.begin[t], arrivals.begin[t + 1] - arrivals.begin[t]);
    if (rows.empty()) {
      std::memset(target, 0, static_cast<std::size_t>(target_bytes));
    } else if (rows.size() == 1 && wire == y.dtype) {
      std::memcpy(target, rows[0].data, static_cast<std::size_t>(target_bytes));
    } else {
      for (auto& node : parts) node.clear();
      for (const auto& row : rows) parts[static_cast<std::size_t>(row.node)].push_back(row.data);
      ordered_sum(wire, parts, y.width, y.dtype, target);
    }
  }
}

}  // namespace

void MovingSums::start(ConstRows z) {
  const Span span(group_.tracer(), {.phase = Phase::kExchange, .name = "combine"});
  check_handle("combine", group_, handle_);
  check_rows("combine: z", z.data, z.dtype, z.num_rows, z.width);
  require_summable("z", z.dtype);
  const std::size_t c = chunks_.size();
  require(c < handle_.chunks.size(), "combine: sums of chunk {}, the dispatch had {} chunks", c,
          handle_.chunks.size());
  const DispatchHandle::Chunk& chunk = handle_.chunks[c];
  require(z.num_rows == chunk.num_rows, "combine: z has {} rows, the dispatch received {}", z.num_rows,
          chunk.num_rows);
  chunks_.emplace_back().z = z;
  if (group_.size() == 1) return;

  Chunk& moved = chunks_.back();
  const int self = group_.rank();
  const Topology& topology = group_.topology();
  const std::int64_t bytes_per_row = row_bytes(z.dtype, z.width);
  const Places from = places_by_rank(scaled(received_rows(handle_, self, c), bytes_per_row));
  moved.to = places_at_source(handle_.route, topology, self, chunk.counts, bytes_per_row);
  moved.home = Buffer(moved.to.bytes);
  const Steps steps = handle_.route == Route::kRailDedup ? rail_dedup_steps_back(topology, self)
                                                         : steps_of_ranks(handle_.route, topology, self);
  const BlockEnds ends{from.begin,
                       {static_cast<const std::byte*>(z.data), static_cast<std::size_t>(from.bytes)},
                       moved.to.begin,
                       moved.home.span()};
  moved.blocks = MovingBlocks(group_, background_, "combine", steps,
                              bytes_of_rows(chunk.counts, bytes_per_row, group_.size(), /*back=*/true), ends,
                              [forwarded = std::span(chunk.forwarded), wire = z.dtype, width = z.width](
                                  const NodeWork& work, const BlockMemory& memory) {
                                sum_rows_of_node(work, memory, forwarded, wire, width);
                              });
}

void MovingSums::finish(Rows y) {
  check_rows("combine: y", y.data, y.dtype, y.num_rows, y.width);
  require_summable("y", y.dtype);
  require(chunks_.size() == handle_.chunks.size(), "combine: sums of {} chunks, the dispatch had {}",
          chunks_.size(), handle_.chunks.size());
  require(y.num_rows == handle_.num_tokens, "combine: y has {} tokens, the dispatch had {}", y.num_rows,
          handle_.num_tokens);
  const int self = group_.rank();
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    const DispatchHandle::Chunk& chunk = handle_.chunks[c];
    Chunk& moved = chunks_[c];
    const ConstRows& z = moved.z;
    require(y.width == z.width, "combine: y is {} wide, z {}", y.width, z.width);
    {
      const Span span(group_.tracer(), {.phase = Phase::kExchange, .name = "sums", .waiting = true});
      moved.blocks.wait();
    }
    const Span span(group_.tracer(), {.phase = Phase::kExchange, .name = "add up"});
    const std::int64_t bytes_per_row = row_bytes(z.dtype, z.width);
    const std::int64_t own = first_of_part(received_rows(handle_, self, c), self);
    const auto parts = parts_at_home(group_.topology(), self, handle_, c, moved.to, moved.home.data(),
                                     static_cast<const std::byte*>(z.data) + own * bytes_per_row);
    sum_rows(group_.topology(), Arrivals(chunk.first_token, chunk.num_tokens, parts, bytes_per_row), z.dtype,
             {static_cast<std::byte*>(y.data) + chunk.first_token * row_bytes(y.dtype, y.width), y.dtype,
              chunk.num_tokens, y.width});
  }
}

void combine(Communicator& group, const DispatchHandle& handle, ConstRows z, Rows y) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "combine"});
  check_handle("combine", group, handle);
  check_rows("combine: z", z.data, z.dtype, z.num_rows, z.width);
  check_rows("combine: y", y.data, y.dtype, y.num_rows, y.width);
  require_summable("z", z.dtype);
  require_summable("y", y.dtype);
  require(z.num_rows == handle.num_rows(), "combine: z has {} rows, the dispatch received {}", z.num_rows,
          handle.num_rows());
  require(y.num_rows == handle.num_tokens, "combine: y has {} tokens, the dispatch had {}", y.num_rows,
          handle.num_tokens);
  require(y.width == z.width, "combine: y is {} wide, z {}", y.width, z.width);
  MovingSums sums(group, handle, /*background=*/false);
  for (const DispatchHandle::Chunk& chunk : handle.chunks) {
    sums.start({static_cast<const std::byte*>(z.data) + chunk.first_row * row_bytes(z.dtype, z.width),
                z.dtype, chunk.num_rows, z.width});
  }
  sums.finish(y);
}

MovingValues::MovingValues(Communicator& group, const DispatchHandle& handle, std::vector<float> values,
                           bool background)
    : group_(group), handle_(handle), values_(std::move(values)) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "return_slot_values"});
  check_handle("return_slot_values", group, handle);
  require(std::ssize(values_) == handle.num_slots(), "return_slot_values: {} values for {} received slots",
          values_.size(), handle.num_slots());
  if (group.size() == 1) return;
  constexpr std::int64_t kBytes = sizeof(float);
  received_.resize(handle.sent_slot.size());
  const Places from = places_by_rank(scaled(handle.receive_slots, kBytes));
  const Places to = places_by_rank(scaled(handle.send_slots, kBytes));
  const auto self = static_cast<std::size_t>(group.rank());
  const auto source = std::as_bytes(std::span(values_));
  const auto target = std::as_writable_bytes(std::span(received_));
  std::copy_n(source.begin() + from.begin.of_ranks[self], handle.send_slots[self] * kBytes,
              target.begin() + to.begin.of_ranks[self]);
  blocks_ = MovingBlocks(
      group, background, "return_slot_values", steps_of_ranks(handle.route, group.topology(), group.rank()),
      {.of_ranks = transposed(scaled(handle.counts.slots, kBytes), group.size()), .of_nodes = {}},
      {from.begin, source, to.begin, target});
}

void MovingValues::finish(std::span<float> home) {
  require(std::ssize(home) == handle_.num_tokens * handle_.num_choices,
          "return_slot_values: room for {} values, expected {} ({} tokens x {} choices)", home.size(),
          handle_.num_tokens * handle_.num_choices, handle_.num_tokens, handle_.num_choices);
  {
    const Span span(group_.tracer(), {.phase = Phase::kExchange, .name = "slot values", .waiting = true});
    blocks_.wait();
  }
  const std::vector<float>& values = group_.size() == 1 ? values_ : received_;
  std::fill(home.begin(), home.end(), 0.0f);
  for (std::size_t i = 0; i < handle_.sent_slot.size(); ++i) {
    home[static_cast<std::size_t>(handle_.sent_slot[i])] = values[i];
  }
}

void return_slot_values(Communicator& group, const DispatchHandle& handle, std::span<const float> values,
                        std::span<float> home) {
  require(std::ssize(home) == handle.num_tokens * handle.num_choices,
          "return_slot_values: room for {} values, expected {} ({} tokens x {} choices)", home.size(),
          handle.num_tokens * handle.num_choices, handle.num_tokens, handle.num_choices);
  MovingValues(group, handle, {values.begin(), values.end()}, /*background=*/false).finish(home);
}

}  // namespace moesaic
