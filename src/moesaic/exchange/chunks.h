// chunks.h: rows of an exchange in chunks that move one after another, so that experts work on one while
// others are under way.
//
// Chunk c of C: the rows of tokens T*c/C to T*(c+1)/C of every rank. A token's rows are in one chunk, so that
// it still crosses once to each owner (or node), and its sum can be made as soon as the chunk is home; within
// the rows from one rank to another a chunk is consecutive. All sizes of all chunks are known to all ranks,
// as those of the whole are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/sender_side.h"

namespace moesaic {

// From facts that all ranks have, so all choose alike. As many as `asked` for, or the most of 1 to 4 with
// which the busiest rank still has 512 KiB a chunk to or from other nodes, and every rank 64 slots a chunk
// for each of its experts (fewer, and weights are read for little work). 1 in a group of one, and where some
// rank works on all its slots in one piece.
std::int64_t choose_chunks(const Topology& topology, const Placement& placement, const ExchangeCounts& counts,
                           std::int64_t bytes_per_row, std::optional<std::int64_t> asked);

inline std::int64_t first_of_chunk(std::int64_t num_tokens, std::int64_t chunk, std::int64_t num_chunks) {
  return num_tokens / num_chunks * chunk + num_tokens % num_chunks * chunk / num_chunks;
}

// This rank's counts by chunk: rows [X], node_rows [N] of chunk 0, then of chunk 1, ...
std::vector<std::int64_t> counts_by_chunk(const SenderSide& side, const NodeSide& nodes,
                                          std::int64_t num_tokens, std::int64_t num_chunks);

// Of all ranks, [C]. Collective: 8 * C * (X + N) bytes of each rank to all others; with one chunk nothing is
// sent. CorruptData names a peer whose chunks do not add up to what it announced.
std::vector<RowCounts> gather_chunk_counts(Communicator& group, const SenderSide& side, const NodeSide& nodes,
                                           std::int64_t num_tokens, std::int64_t num_chunks,
                                           const RowCounts& whole);

// `told` by rank `from` of the group, whose name in messages is `peer`.
void check_chunk_counts(std::span<const std::int64_t> told, const RowCounts& whole, const Topology& topology,
                        int from, int peer);

// Fills handle.chunks (but for `forwarded`) and row_there; receive_rows and num_tokens are known. `counts`:
// as gathered; empty in a group of one.
void lay_out_chunks(int rank, std::vector<RowCounts> counts, DispatchHandle& handle);

// The part of a source's rows for a node that is in chunk c. CorruptData where masks put a row into another
// chunk than was announced.
DispatchHandle::Forwarded forwarded_in_chunk(const DispatchHandle::Forwarded& whole, const Topology& topology,
                                             int rank, const std::vector<DispatchHandle::Chunk>& chunks,
                                             std::size_t chunk, int peer);

// [X] rows of a chunk that `rank` (this one) receives from each.
std::vector<std::int64_t> received_rows(const DispatchHandle& handle, int rank, std::size_t chunk);

// The tokens of a chunk that this rank (`rank`) sends to another, and to a node.
std::span<const std::int64_t> tokens_for_rank(const DispatchHandle& handle, int rank, std::size_t chunk,
                                              int to);
std::span<const std::int64_t> tokens_for_node(const DispatchHandle& handle, const Topology& topology,
                                              int rank, std::size_t chunk, int node);

}  // namespace moesaic
