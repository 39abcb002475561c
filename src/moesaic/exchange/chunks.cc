#include "moesaic/exchange/chunks.h"

#include <algorithm>
#include <utility>

#include "moesaic/comm/collectives.h"
#include "moesaic/exchange/require_of_peer.h"
#include "moesaic/exchange/rows.h"

namespace moesaic {
namespace {

constexpr std::int64_t kMostChosen = 4;
constexpr std::int64_t kBytesPerChunk = std::int64_t{512} << 10;
constexpr std::int64_t kSlotsPerExpert = 64;

// The most rows that one rank sends to other nodes, or receives from there.
std::int64_t busiest_crossing(const Topology& topology, const ExchangeCounts& counts) {
  const int size = topology.world_size();
  std::int64_t busiest = 0;
  for (int rank = 0; rank < size; ++rank) {
    std::int64_t out = 0, in = 0;
    for (int other = 0; other < size; ++other) {
      if (topology.node_of(other) == topology.node_of(rank)) continue;
      out += counts.rows[static_cast<std::size_t>(rank * size + other)];
      in += counts.rows[static_cast<std::size_t>(other * size + rank)];
    }
    busiest = std::max({busiest, out, in});
  }
  return busiest;
}

// Appends, by chunk, how many of `tokens` (ascending) are in it; entry i of chunk c: counts[c * stride + i].
void count_by_chunk(std::span<const std::int64_t> tokens, std::int64_t num_tokens, std::int64_t num_chunks,
                    std::size_t i, std::size_t stride, std::vector<std::int64_t>& counts) {
  auto begin = tokens.begin();
  for (std::int64_t c = 0; c < num_chunks; ++c) {
    const auto end = std::lower_bound(begin, tokens.end(), first_of_chunk(num_tokens, c + 1, num_chunks));
    counts[static_cast<std::size_t>(c) * stride + i] = end - begin;
    begin = end;
  }
}

// The sum of entry `at` of each chunk before `chunk`.
template <typename Counts>
std::int64_t before_chunk(const DispatchHandle& handle, std::size_t chunk, Counts counts, std::size_t at) {
  std::int64_t sum = 0;
  for (std::size_t c = 0; c < chunk; ++c) sum += (handle.chunks[c].counts.*counts)[at];
  return sum;
}

}  // namespace

std::int64_t choose_chunks(const Topology& topology, const Placement& placement, const ExchangeCounts& counts,
                           std::int64_t bytes_per_row, std::optional<std::int64_t> asked) {
  const int size = topology.world_size();
  if (size == 1) return 1;
  std::int64_t chunks =
      asked ? *asked
            : std::min(kMostChosen, busiest_crossing(topology, counts) * bytes_per_row / kBytesPerChunk);
  for (int rank = 0; rank < size; ++rank) {
    std::int64_t slots = 0;
    for (int from = 0; from < size; ++from)
      slots += counts.slots[static_cast<std::size_t>(from * size + rank)];
    if (slots >= counts.uncut_slots[static_cast<std::size_t>(rank)]) return 1;
    const auto experts = std::ssize(placement.experts_of(rank));
    if (!asked && experts > 0) chunks = std::min(chunks, slots / (experts * kSlotsPerExpert));
  }
  return std::max<std::int64_t>(chunks, 1);
}

std::vector<std::int64_t> counts_by_chunk(const SenderSide& side, const NodeSide& nodes,
                                          std::int64_t num_tokens, std::int64_t num_chunks) {
  const std::size_t stride = side.rows.size() + nodes.rows.size();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_chunks) * stride);
  std::size_t i = 0;
  const auto add = [&](std::span<const std::int64_t> rows, std::span<const std::int64_t> tokens) {
    for (const std::int64_t n : rows) {
      count_by_chunk(tokens.first(static_cast<std::size_t>(n)), num_tokens, num_chunks, i++, stride, counts);
      tokens = tokens.subspan(static_cast<std::size_t>(n));
    }
  };
  add(side.rows, side.token);
  add(nodes.rows, nodes.token);
  return counts;
}

void check_chunk_counts(std::span<const std::int64_t> told, const RowCounts& whole, const Topology& topology,
                        int from, int peer) {
  const auto size = static_cast<std::size_t>(topology.world_size()),
             num_nodes = static_cast<std::size_t>(topology.num_nodes());
  std::vector<std::int64_t> sums(size + num_nodes, 0);
  for (std::size_t i = 0; i < told.size(); ++i) {
    const std::size_t at = i % sums.size();
    const auto& announced = at < size ? whole.rows : whole.node_rows;
    const std::int64_t all = announced[static_cast<std::size_t>(from) * (at < size ? size : num_nodes) +
                                       (at < size ? at : at - size)];
    require_of_peer(told[i] >= 0 && told[i] <= all - sums[at], peer,
                    "announces {} rows in a chunk where {} are left", told[i], all - sums[at]);
    sums[at] += told[i];
    if (i + sums.size() >= told.size()) {
      require_of_peer(sums[at] == all, peer, "announces chunks of {} rows in all, expected {}", sums[at],
                      all);
    }
  }
  for (; !told.empty(); told = told.subspan(sums.size())) {
    check_node_rows(told.first(size), told.subspan(size, num_nodes), topology, from, peer);
  }
}

std::vector<RowCounts> gather_chunk_counts(Communicator& group, const SenderSide& side, const NodeSide& nodes,
                                           std::int64_t num_tokens, std::int64_t num_chunks,
                                           const RowCounts& whole) {
  if (num_chunks == 1) return {whole};
  const auto size = static_cast<std::size_t>(group.size());
  const auto words = counts_by_chunk(side, nodes, num_tokens, num_chunks);
  std::vector<std::int64_t> all(words.size() * size);
  all_gather_v(group, std::as_bytes(std::span(words)),
               std::vector<std::int64_t>(size, std::ssize(words) * std::int64_t{sizeof(std::int64_t)}),
               std::as_writable_bytes(std::span(all)));
  std::vector<RowCounts> chunks(static_cast<std::size_t>(num_chunks));
  for (int from = 0; from < group.size(); ++from) {
    auto told = std::span(all).subspan(static_cast<std::size_t>(from) * words.size(), words.size());
    check_chunk_counts(told, whole, group.topology(), from, group.world_rank(from));
    const std::size_t stride = words.size() / chunks.size();
    for (RowCounts& chunk : chunks) {
      const auto rows = told.first(size), node_rows = told.subspan(size, stride - size);
      chunk.rows.insert(chunk.rows.end(), rows.begin(), rows.end());
      chunk.node_rows.insert(chunk.node_rows.end(), node_rows.begin(), node_rows.end());
      told = told.subspan(stride);
    }
  }
  return chunks;
}

void lay_out_chunks(int rank, std::vector<RowCounts> counts, DispatchHandle& handle) {
  const auto num_chunks = std::max<std::int64_t>(1, std::ssize(counts));
  const auto self = static_cast<std::size_t>(rank), size = handle.receive_rows.size();
  if (counts.size() <= 1) {
    handle.chunks.push_back({.first_token = 0,
                             .num_tokens = handle.num_tokens,
                             .first_row = 0,
                             .num_rows = first_of_part(handle.receive_rows, static_cast<int>(size)),
                             .counts = counts.empty() ? RowCounts() : std::move(counts.front()),
                             .forwarded = {}});
    return;
  }
  std::vector<std::int64_t> next(size, 0);  // the row from each source that comes next
  for (std::size_t r = 1; r < size; ++r) next[r] = next[r - 1] + handle.receive_rows[r - 1];
  for (std::int64_t c = 0; c < num_chunks; ++c) {
    const std::int64_t token = first_of_chunk(handle.num_tokens, c, num_chunks);
    DispatchHandle::Chunk chunk{.first_token = token,
                                .num_tokens = first_of_chunk(handle.num_tokens, c + 1, num_chunks) - token,
                                .first_row = std::ssize(handle.row_there),
                                .num_rows = 0,
                                .counts = std::move(counts[static_cast<std::size_t>(c)]),
                                .forwarded = {}};
    for (std::size_t from = 0; from < size; ++from) {
      for (std::int64_t n = chunk.counts.rows[from * size + self]; n > 0; --n) {
        handle.row_there.push_back(next[from]++);
      }
    }
    chunk.num_rows = std::ssize(handle.row_there) - chunk.first_row;
    handle.chunks.push_back(std::move(chunk));
  }
}

DispatchHandle::Forwarded forwarded_in_chunk(const DispatchHandle::Forwarded& whole, const Topology& topology,
                                             int rank, const std::vector<DispatchHandle::Chunk>& chunks,
                                             std::size_t chunk, int peer) {
  const int home = topology.node_of(rank), num_nodes = topology.num_nodes(), size = topology.world_size();
  const auto here = topology.ranks_of(home);
  std::int64_t begin = 0;
  std::vector<std::size_t> first(here.size(), 0);
  const auto rows_to = [&](std::size_t c, std::size_t i) {
    return static_cast<std::size_t>(
        chunks[c].counts.rows[static_cast<std::size_t>(whole.source * size + here[i])]);
  };
  const auto node_rows_of = [&](std::size_t c) {
    return chunks[c].counts.node_rows[static_cast<std::size_t>(whole.source * num_nodes + home)];
  };
  for (std::size_t c = 0; c < chunk; ++c) {
    begin += node_rows_of(c);
    for (std::size_t i = 0; i < here.size(); ++i) first[i] += rows_to(c, i);
  }
  DispatchHandle::Forwarded part{.source = whole.source, .rows_of_rank = {}};
  for (std::size_t i = 0; i < here.size(); ++i) {
    auto& rows = part.rows_of_rank.emplace_back();
    for (const std::int64_t row : std::span(whole.rows_of_rank[i]).subspan(first[i], rows_to(chunk, i))) {
      require_of_peer(row >= begin && row - begin < node_rows_of(chunk), peer,
                      "sent row {} of a node in chunk {}, which has rows {} to {}", row, chunk, begin,
                      begin + node_rows_of(chunk) - 1);
      rows.push_back(row - begin);
    }
  }
  return part;
}

std::vector<std::int64_t> received_rows(const DispatchHandle& handle, int rank, std::size_t chunk) {
  if (handle.chunks.size() == 1) return handle.receive_rows;
  std::vector<std::int64_t> rows;
  const std::size_t size = handle.receive_rows.size();
  for (std::size_t from = 0; from < size; ++from) {
    rows.push_back(handle.chunks[chunk].counts.rows[from * size + static_cast<std::size_t>(rank)]);
  }
  return rows;
}

std::span<const std::int64_t> tokens_for_rank(const DispatchHandle& handle, int rank, std::size_t chunk,
                                              int to) {
  const std::int64_t first = first_of_part(handle.send_rows, to);
  if (handle.chunks.size() == 1) {
    return std::span(handle.sent_token)
        .subspan(static_cast<std::size_t>(first),
                 static_cast<std::size_t>(handle.send_rows[static_cast<std::size_t>(to)]));
  }
  const std::size_t at =
      static_cast<std::size_t>(rank) * handle.send_rows.size() + static_cast<std::size_t>(to);
  return std::span(handle.sent_token)
      .subspan(static_cast<std::size_t>(first + before_chunk(handle, chunk, &RowCounts::rows, at)),
               static_cast<std::size_t>(handle.chunks[chunk].counts.rows[at]));
}

std::span<const std::int64_t> tokens_for_node(const DispatchHandle& handle, const Topology& topology,
                                              int rank, std::size_t chunk, int node) {
  const auto row = static_cast<std::size_t>(rank * topology.num_nodes());
  const auto of_nodes =
      std::span(handle.counts.node_rows).subspan(row, static_cast<std::size_t>(topology.num_nodes()));
  const std::size_t at = row + static_cast<std::size_t>(node);
  return std::span(handle.sent_node_token)
      .subspan(static_cast<std::size_t>(first_of_part(of_nodes, node) +
                                        before_chunk(handle, chunk, &RowCounts::node_rows, at)),
               static_cast<std::size_t>(handle.chunks[chunk].counts.node_rows[at]));
}

}  // namespace moesaic
