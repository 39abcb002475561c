// collectives.h: the operations every rank of a Communicator calls together.
//
// Collective: all members, same order, matching arguments. Sizes are int64 and may be zero anywhere. Buffers
// are borrowed for the call (start_*: until Pending::wait()). Errors: InvalidArgument before anything is sent
// (start_*: from the call itself); PeerLost when a peer aborts, dies or stays silent past the communicator's
// timeout, counted from the last message of the operation that finished. After a PeerLost the communicator is
// of no more use. start_*: operations of one communicator run one after another on its own thread, beside the
// caller's. Steps and bytes of each algorithm: docs/algorithms.md.
//
// Sums have one order (contract 1 of the design): ranks of a node ascending in fp32, rounded to the wire
// dtype; then nodes ascending in fp32. Integers and fp64 are summed by rank ascending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "moesaic/comm/communicator.h"
#include "moesaic/comm/pending.h"
#include "moesaic/core/dtype.h"

namespace moesaic {

void barrier(Communicator& group);

// The root's bytes to everyone. Every rank passes a buffer of the same size.
void broadcast(Communicator& group, std::span<std::byte> buffer, int root);

// `all` = the members' `mine`, ascending by rank; bytes_per_rank[r] is the size of rank r's part (known to
// all). `span` (start_*): the operation's name in a trace, borrowed like the buffers.
void all_gather_v(Communicator& group, std::span<const std::byte> mine,
                  std::span<const std::int64_t> bytes_per_rank, std::span<std::byte> all,
                  std::span<const std::int64_t> offsets = {});
Pending start_all_gather_v(Communicator& group, std::span<const std::byte> mine,
                           std::span<const std::int64_t> bytes_per_rank, std::span<std::byte> all,
                           std::span<const std::int64_t> offsets = {}, std::string_view span = {});

// Rank r receives what every rank had for r. send: parts for rank 0, 1, … back to back (send_bytes[r] each);
// receive: parts from rank 0, 1, … back to back (receive_bytes[r] each). Both sides must agree on sizes:
// a disagreement throws CorruptData.
void all_to_all_v(Communicator& group, std::span<const std::byte> send,
                  std::span<const std::int64_t> send_bytes, std::span<std::byte> receive,
                  std::span<const std::int64_t> receive_bytes);

// Rank r gets the sum over all ranks of part r. `input`: parts for rank 0, 1, … of elements_per_rank[r]
// elements of `wire` (kF32 or kBF16); `output`: elements_per_rank[rank] floats.
// offsets (elements, one per rank), where given: the part for rank r lies at offsets[r] of `input` instead.
void reduce_scatter_v(Communicator& group, std::span<const std::byte> input, DType wire,
                      std::span<const std::int64_t> elements_per_rank, std::span<float> output,
                      std::span<const std::int64_t> offsets = {});
Pending start_reduce_scatter_v(Communicator& group, std::span<const std::byte> input, DType wire,
                               std::span<const std::int64_t> elements_per_rank, std::span<float> output,
                               std::span<const std::int64_t> offsets = {}, std::string_view span = {});

// In-place sum over ranks; small payloads (metrics, norms, counts).
void all_reduce(Communicator& group, std::span<double> values);
void all_reduce(Communicator& group, std::span<std::int64_t> values);
void all_reduce(Communicator& group, std::span<float> values);

}  // namespace moesaic
