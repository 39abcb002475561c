// algorithms.h: the collectives as schedules. Pure functions: nothing is sent or allocated for the data.
//
// W ranks; `rank` is the one whose list is built. Counts are int64 and may be zero. A message is sent even
// when it is empty, so that two ends that disagree about a size are always found out (CorruptData) instead of
// passing each other. Messages to all peers are posted in the order rank+1, rank+2, …, so that no rank is
// everyone's first target. InvalidArgument: wrong number of counts, a negative count, a sum past int64, a
// rank or root out of range. Steps, messages and bytes: docs/algorithms.md.
#pragma once

#include <cstdint>
#include <span>

#include "moesaic/comm/schedule.h"
#include "moesaic/comm/topology.h"

namespace moesaic {

// Dissemination: in round k, rank r signals r + 2^k and waits for r - 2^k. No buffers.
Schedule barrier_schedule(int world_size, int rank);

// Binomial tree from the root; kOutput holds `bytes`, read at the root and written elsewhere.
Schedule broadcast_schedule(int world_size, int rank, int root, std::int64_t bytes);

// Own part to every rank of the node and to one rank of each other node, its counterpart (topology.h), which
// hands it on inside that node: a part enters a node once. kInput: own part; kOutput: all parts, ascending,
// or where `offsets` (bytes) says.
Schedule all_gather_v_schedule(const Topology& topology, int rank,
                               std::span<const std::int64_t> bytes_per_rank,
                               std::span<const std::int64_t> offsets = {});

// One rank's part of a gather in which parts are coded on their way to other nodes. Coded ranges lie in
// kStaging, plain ones in kOutput. `coded` is read at the owner and at those who carry or use it; sizes may
// be unknown (0) elsewhere.
struct CodedPart {
  Range coded{BufferId::kStaging};
  Range plain{BufferId::kOutput};
};
// What the ranks of a node hand each other.
enum class InsideNode {
  kCoded,  // every rank decodes what others own
  kPlain,  // the carrier of a part decodes it for its node, the owner's node needs no code
};

// Every part to every rank: coded, once to each other node, to the owner's counterpart there, which hands it
// on. kNotify with a part's owner as peer: its coded bytes are in; when the caller returns, the plain bytes
// must be there. kNotify with the own rank: all own messages that wait for nothing are under way.
Schedule coded_gather_schedule(const Topology& topology, int rank, std::span<const CodedPart> parts,
                               InsideNode inside);

// The second half of it alone: every rank of the node has the plain bytes of its own part and of those it
// carries, and hands them to the others.
Schedule inside_node_schedule(const Topology& topology, int rank, std::span<const CodedPart> parts);

// Direct. kInput: parts for rank 0, 1, …; kOutput: parts from rank 0, 1, ….
Schedule all_to_all_v_schedule(int world_size, int rank, std::span<const std::int64_t> send_bytes,
                               std::span<const std::int64_t> receive_bytes);

// Part r of a node's ranks meets at rank r where that is on the node, else at r's counterpart there, which
// adds them and sends r the one sum: a part leaves a node once. Rank r adds its own node's parts and the
// sums of the others; the bits are those of contract 1. kInput: parts for rank 0, 1, … in `wire` (fp32,
// bf16), or where `offsets` (elements) says; kOutput: the own sum in fp32.
Schedule reduce_scatter_v_schedule(const Topology& topology, int rank, DType wire,
                                   std::span<const std::int64_t> elements_per_rank,
                                   std::span<const std::int64_t> offsets = {});

// The first half of it: the sums of this node's parts for the owners whose collector here is `rank` (itself,
// and those it stands for), in `wire`, at sum_offsets[owner] (bytes) of kStaging. Other entries are not used.
Schedule node_sums_schedule(const Topology& topology, int rank, DType wire,
                            std::span<const std::int64_t> elements_per_rank,
                            std::span<const std::int64_t> offsets, std::span<const std::int64_t> sum_offsets);

// Everyone's values to everyone, added locally by all in the same order: fp32 by node then rank (contract 1),
// fp64 and int64 by rank. kInput and kOutput (which may be the same memory): `count` elements of `dtype`.
Schedule all_reduce_schedule(const Topology& topology, int rank, DType dtype, std::int64_t count);

}  // namespace moesaic
