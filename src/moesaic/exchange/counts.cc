#include "moesaic/exchange/counts.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/crc32c.h"
#include "moesaic/exchange/require_of_peer.h"

namespace moesaic {
namespace {

constexpr std::size_t kAgreementWords = sizeof(Agreement) / sizeof(std::int64_t);

}  // namespace

std::int64_t table_digest(const Placement& placement) {
  std::vector<std::int32_t> table;
  for (int e = 0; e < placement.num_experts(); ++e) table.push_back(placement.owner_in_group(e));
  return crc32c(std::as_bytes(std::span(table)));
}

void check_told(const Agreement& got, const Agreement& mine, std::span<const std::int64_t> told,
                const Topology& topology, const Placement& placement, int from, int peer) {
  require_of_peer(got.table_digest == mine.table_digest, peer,
                  "has another table of expert owners (digest {:#x}, expected {:#x})", got.table_digest,
                  mine.table_digest);
  require_of_peer(got.row_bytes == mine.row_bytes, peer, "sends rows of {} bytes, expected {}", got.row_bytes,
                  mine.row_bytes);
  require_of_peer(got.sum_bytes == mine.sum_bytes, peer, "returns sums of {} bytes, expected {}",
                  got.sum_bytes, mine.sum_bytes);
  require_of_peer(got.route == mine.route, peer, "asks for another route ({}, expected {})", got.route,
                  mine.route);
  require_of_peer(got.chunks == mine.chunks, peer, "asks for {} chunks, expected {}", got.chunks,
                  mine.chunks);
  const auto size = static_cast<std::size_t>(topology.world_size());
  const auto rows = told.first(size), slots = told.subspan(size, size), node_rows = told.subspan(2 * size);
  // So that no sum of sizes leaves 63 bits.
  const std::int64_t largest = std::max({std::int64_t{1}, mine.row_bytes, mine.sum_bytes});
  const auto most =
      std::numeric_limits<std::int64_t>::max() / 16 / (largest * std::ssize(rows) * std::ssize(rows));
  for (std::size_t to = 0; to < size; ++to) {
    // Each row has at least one slot and at most one per expert there.
    const auto experts = std::ssize(placement.experts_of(static_cast<int>(to)));
    const bool possible = rows[to] >= 0 && rows[to] <= most && slots[to] >= rows[to] &&
                          (slots[to] == 0 || (experts > 0 && (slots[to] - 1) / experts + 1 <= rows[to]));
    require_of_peer(
        possible, peer,
        "announces {} rows with {} slots to rank {} of its group, which has {} experts, expected 1 "
        "to {} slots a row",
        rows[to], slots[to], to, experts, experts);
  }
  check_node_rows(rows, node_rows, topology, from, peer);
}

void check_node_rows(std::span<const std::int64_t> rows, std::span<const std::int64_t> node_rows,
                     const Topology& topology, int from, int peer) {
  for (int node = 0; node < topology.num_nodes(); ++node) {
    std::int64_t largest = 0, all = 0;
    for (const int to : topology.ranks_of(node)) {
      if (node == topology.node_of(from)) continue;
      largest = std::max(largest, rows[static_cast<std::size_t>(to)]);
      all += rows[static_cast<std::size_t>(to)];
    }
    const std::int64_t once = node_rows[static_cast<std::size_t>(node)];
    require_of_peer(once >= largest && once <= all, peer,
                    "announces {} tokens for node {} of its group, expected {} to {}", once, node, largest,
                    all);
  }
}

ExchangeCounts gather_counts(Communicator& group, const Placement& placement, const SenderSide& side,
                             const NodeSide& nodes, const Agreement& mine, std::int64_t uncut_slots) {
  const Topology& topology = group.topology();
  const auto size = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> words(kAgreementWords);
  std::memcpy(words.data(), &mine, sizeof mine);
  words.push_back(uncut_slots);
  words.insert(words.end(), side.rows.begin(), side.rows.end());
  words.insert(words.end(), side.slots.begin(), side.slots.end());
  words.insert(words.end(), nodes.rows.begin(), nodes.rows.end());
  std::vector<std::int64_t> all(words.size() * size);
  all_gather_v(group, std::as_bytes(std::span(words)),
               std::vector<std::int64_t>(size, std::ssize(words) * std::int64_t{sizeof(std::int64_t)}),
               std::as_writable_bytes(std::span(all)));

  ExchangeCounts counts;
  for (int from = 0; from < group.size(); ++from) {
    const auto theirs = std::span(all).subspan(static_cast<std::size_t>(from) * words.size(), words.size());
    Agreement got;
    std::memcpy(&got, theirs.data(), sizeof got);
    counts.uncut_slots.push_back(theirs[kAgreementWords]);
    const auto told = theirs.subspan(kAgreementWords + 1);
    if (from != group.rank()) {
      check_told(got, mine, told, topology, placement, from, group.world_rank(from));
    }
    counts.rows.insert(counts.rows.end(), told.begin(), told.begin() + group.size());
    counts.slots.insert(counts.slots.end(), told.begin() + group.size(), told.begin() + 2 * group.size());
    counts.node_rows.insert(counts.node_rows.end(), told.begin() + 2 * group.size(), told.end());
  }
  return counts;
}

}  // namespace moesaic
