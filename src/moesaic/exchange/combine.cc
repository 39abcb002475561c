#include <algorithm>
#include <cstring>
#include <numeric>

#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/error.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/move_blocks.h"
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

  // `parts` by node, then rank.
  Arrivals(std::int64_t num_tokens, const std::vector<Part>& parts, std::int64_t bytes_per_row)
      : begin(static_cast<std::size_t>(num_tokens) + 1, 0) {
    std::size_t num_rows = 0;
    for (const Part& part : parts) {
      num_rows += part.tokens.size();
      for (const std::int64_t t : part.tokens) ++begin[static_cast<std::size_t>(t) + 1];
    }
    rows.resize(num_rows);
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    auto next = begin;
    for (const Part& part : parts) {
      const std::byte* row = part.data;
      for (const std::int64_t t : part.tokens) {
        rows[next[static_cast<std::size_t>(t)]++] = {row, part.node};
        row += bytes_per_row;
      }
    }
  }
};

// What lies in `home` (places_at_source) and the own rows at `mine`.
std::vector<Part> parts_at_home(const Topology& topology, int self, const DispatchHandle& handle,
                                const Places& places, const std::byte* home, const std::byte* mine) {
  std::vector<Part> parts;
  std::size_t node_begin = 0;
  for (int node = 0; node < topology.num_nodes(); ++node) {
    if (handle.route == Route::kRailDedup && node != topology.node_of(self)) {
      const auto count = static_cast<std::size_t>(
          handle.counts.node_rows[static_cast<std::size_t>(self * topology.num_nodes() + node)]);
      parts.push_back({node, home + places.begin.of_nodes[static_cast<std::size_t>(node)],
                       std::span(handle.sent_node_token).subspan(node_begin, count)});
      node_begin += count;
      continue;
    }
    for (const int r : topology.ranks_of(node)) {
      const auto at = static_cast<std::size_t>(r);
      parts.push_back({node, r == self ? mine : home + places.begin.of_ranks[at],
                       std::span(handle.sent_token)
                           .subspan(static_cast<std::size_t>(first_of_part(handle.send_rows, r)),
                                    static_cast<std::size_t>(handle.send_rows[at]))});
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

  const std::int64_t bytes_per_row = row_bytes(z.dtype, z.width);
  const int self = group.rank();
  const Topology& topology = group.topology();
  const auto* rows = static_cast<const std::byte*>(z.data);
  const Places from = places_by_rank(scaled(handle.receive_rows, bytes_per_row));
  Places to;
  Buffer home;
  if (group.size() > 1) {
    to = places_at_source(handle.route, topology, self, handle.counts, bytes_per_row);
    home = Buffer(to.bytes);
    move_blocks(group, "combine",
                handle.route == Route::kRailDedup ? rail_dedup_steps_back(topology, self)
                                                  : steps_of_ranks(handle.route, topology, self),
                bytes_of_rows(handle.counts, bytes_per_row, group.size(), /*back=*/true), from.begin,
                {rows, static_cast<std::size_t>(from.bytes)}, to.begin, home.span(),
                [&](const NodeWork& work, const BlockMemory& memory) {
                  sum_rows_of_node(work, memory, handle, z.dtype, z.width);
                });
  }
  const std::byte* mine = rows + from.begin.of_ranks[static_cast<std::size_t>(self)];
  const auto parts = parts_at_home(topology, self, handle, to, home.data(), mine);
  sum_rows(topology, Arrivals(handle.num_tokens, parts, bytes_per_row), z.dtype, y);
}

void return_slot_values(Communicator& group, const DispatchHandle& handle, std::span<const float> values,
                        std::span<float> home) {
  const Span span(group.tracer(), {.phase = Phase::kExchange, .name = "return_slot_values"});
  check_handle("return_slot_values", group, handle);
  require(std::ssize(values) == handle.num_slots(), "return_slot_values: {} values for {} received slots",
          values.size(), handle.num_slots());
  require(std::ssize(home) == handle.num_tokens * handle.num_choices,
          "return_slot_values: room for {} values, expected {} ({} tokens x {} choices)", home.size(),
          handle.num_tokens * handle.num_choices, handle.num_tokens, handle.num_choices);
  std::vector<float> received;
  if (group.size() > 1) {
    received.resize(handle.sent_slot.size());
    const Places from = places_by_rank(scaled(handle.receive_slots, sizeof(float)));
    const Places to = places_by_rank(scaled(handle.send_slots, sizeof(float)));
    const BlockBytes bytes{.of_ranks = transposed(scaled(handle.counts.slots, sizeof(float)), group.size()),
                           .of_nodes = {}};
    const auto self = static_cast<std::size_t>(group.rank());
    const auto source = std::as_bytes(values);
    const auto target = std::as_writable_bytes(std::span(received));
    std::copy_n(source.begin() + from.begin.of_ranks[self],
                handle.send_slots[self] * std::int64_t{sizeof(float)},
                target.begin() + to.begin.of_ranks[self]);
    move_blocks(group, "return_slot_values", steps_of_ranks(handle.route, group.topology(), group.rank()),
                bytes, from.begin, source, to.begin, target);
    values = received;
  }
  std::fill(home.begin(), home.end(), 0.0f);
  for (std::size_t i = 0; i < handle.sent_slot.size(); ++i) {
    home[static_cast<std::size_t>(handle.sent_slot[i])] = values[i];
  }
}

}  // namespace moesaic
