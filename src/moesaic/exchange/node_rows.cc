#include "moesaic/exchange/node_rows.h"

#include <algorithm>
#include <cstring>

#include "moesaic/comm/ordered_sum.h"
#include "moesaic/core/error.h"
#include "moesaic/exchange/rows.h"

namespace moesaic {
namespace {

using Forwarded = DispatchHandle::Forwarded;

const Forwarded& forwarded_of(std::span<const Forwarded> forwarded, int source) {
  const auto found = std::ranges::find(forwarded, source, &Forwarded::source);
  require(found != forwarded.end(), "rail_dedup: rank {} sent no masks here", source);
  return *found;
}

}  // namespace

void spread_rows(const NodeWork& work, const BlockMemory& memory, std::span<const Forwarded> forwarded,
                 std::int64_t bytes_per_row) {
  const auto& rows_of_rank = forwarded_of(forwarded, work.rank).rows_of_rank;
  const std::byte* const rows = memory.read(work.node_block);
  for (std::size_t i = 0; i < rows_of_rank.size(); ++i) {
    gather_rows(rows, rows_of_rank[i], bytes_per_row, memory.write(work.of_ranks[i]));
  }
}

void sum_rows_of_node(const NodeWork& work, const BlockMemory& memory, std::span<const Forwarded> forwarded,
                      DType wire, std::int64_t width) {
  const auto& rows_of_rank = forwarded_of(forwarded, work.rank).rows_of_rank;
  const std::int64_t bytes_per_row = row_bytes(wire, width);
  std::vector<const std::byte*> next;
  for (const Range& range : work.of_ranks) next.push_back(memory.read(range));
  std::vector<std::size_t> done(rows_of_rank.size(), 0);
  std::vector<std::vector<const std::byte*>> parts(1);
  std::byte* target = memory.write(work.node_block);
  const std::int64_t num_rows = work.node_block.bytes / bytes_per_row;
  for (std::int64_t row = 0; row < num_rows; ++row, target += bytes_per_row) {
    parts[0].clear();
    for (std::size_t i = 0; i < rows_of_rank.size(); ++i) {
      if (done[i] == rows_of_rank[i].size() || rows_of_rank[i][done[i]] != row) continue;
      parts[0].push_back(next[i]);
      next[i] += bytes_per_row;
      ++done[i];
    }
    if (parts[0].size() == 1) {
      std::memcpy(target, parts[0][0], static_cast<std::size_t>(bytes_per_row));
    } else {
      ordered_sum(wire, parts, width, wire, target);
    }
  }
}

}  // namespace moesaic
