#include <algorithm>
#include <cstring>
#include <numeric>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/error.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/flat_route.h"
#include "moesaic/exchange/rows.h"

namespace moesaic {
namespace {

void require_summable(std::string_view what, DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kBF16, "combine: {} is {}, expected fp32 or bf16", what,
          name_of(dtype));
}

// The rows that came home, by token; those of one token by node, then rank: the order of their sum.
struct Arrivals {
  struct Row {
    const std::byte* data;
    int node;
  };
  std::vector<std::size_t> begin;  // [T+1]
  std::vector<Row> rows;

  // part[r]: where the rows that rank r returned begin.
  Arrivals(const Topology& topology, const DispatchHandle& handle, std::span<const std::byte* const> part,
           std::int64_t bytes_per_row)
      : begin(static_cast<std::size_t>(handle.num_tokens) + 1, 0), rows(handle.sent_token.size()) {
    for (const std::int64_t t : handle.sent_token) ++begin[static_cast<std::size_t>(t) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    auto next = begin;
    for (int node = 0; node < topology.num_nodes(); ++node) {
      for (const int r : topology.ranks_of(node)) {
        const std::byte* row = part[static_cast<std::size_t>(r)];
        const auto tokens =
            std::span(handle.sent_token)
                .subspan(static_cast<std::size_t>(first_of_part(handle.send_rows, r)),
                         static_cast<std::size_t>(handle.send_rows[static_cast<std::size_t>(r)]));
        for (const std::int64_t t : tokens) {
          rows[next[static_cast<std::size_t>(t)]++] = {row, node};
          row += bytes_per_row;
        }
      }
    }
  }
};

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
  const auto* mine = static_cast<const std::byte*>(z.data);
  const auto home_bytes = bytes_of_parts(handle.send_rows, bytes_per_row, self);
  Buffer home(std::accumulate(home_bytes.begin(), home_bytes.end(), std::int64_t{0}));
  if (group.size() > 1) {
    const auto send_bytes = bytes_of_parts(handle.receive_rows, bytes_per_row);
    const auto all = static_cast<std::size_t>(z.num_rows * bytes_per_row);
    send_flat(group, "combine", {mine, all}, send_bytes, home.span(), home_bytes);
  }

  std::vector<const std::byte*> part;
  for (int r = 0; r < group.size(); ++r) {
    part.push_back(r == self ? mine + first_of_part(handle.receive_rows, r) * bytes_per_row
                             : home.data() + first_of_part(home_bytes, r));
  }
  sum_rows(group.topology(), Arrivals(group.topology(), handle, part, bytes_per_row), z.dtype, y);
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
    all_to_all_v(group, std::as_bytes(values), bytes_of_parts(handle.receive_slots, sizeof(float)),
                 std::as_writable_bytes(std::span(received)),
                 bytes_of_parts(handle.send_slots, sizeof(float)));
    values = received;
  }
  std::fill(home.begin(), home.end(), 0.0f);
  for (std::size_t i = 0; i < handle.sent_slot.size(); ++i) {
    home[static_cast<std::size_t>(handle.sent_slot[i])] = values[i];
  }
}

}  // namespace moesaic
