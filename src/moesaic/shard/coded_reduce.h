// coded_reduce.h: sums a unit's gradients into their owners' shards, coded where they cross between nodes.
//
// Collective over a group, on one thread of each rank (start_job); no torch. The ranks of a node add their
// parts first, as reduce_scatter_v does: in fp32, ascending, rounded to bf16. The sum for an owner on another
// node then travels as one message (codec/gradient.h), in which blocks of zeros, such as experts without
// tokens on that node, cost next to nothing. The owner adds the nodes' sums in fp32, ascending. So with a
// lossless wire the result has the bits of reduce_scatter_v.
//
// Errors: CorruptData where a message is damaged or came by another wire (the caller must abort the
// transport: start_job does).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "moesaic/codec/gradient.h"
#include "moesaic/comm/communicator.h"
#include "moesaic/core/buffer.h"

namespace moesaic {

// What one rank did.
struct ReduceCounts {
  std::int64_t runs = 0;
  std::int64_t words = 0;        // that it sent to other nodes, before coding
  std::int64_t live_words = 0;   // of coded messages: without blocks of zeros
  std::int64_t coded_bytes = 0;  // of their messages
  double encode_seconds = 0, decode_seconds = 0;
  double seconds = 0;  // of all runs, waiting for others included

  ReduceCounts& operator+=(const ReduceCounts& other);
};

// Memory for sums and messages under way, shared by the reduces of one group.
struct ReduceSpace {
  Buffer sums, outbox, inbox;
};

// What the part of one rank is made of, so that its words can be told by rows and columns.
using GradientPieces = std::vector<codec::GradientPiece>;

class CodedReduce {
 public:
  // part_elements[r] elements of rank r of the group lie at part_offsets[r] of the whole unit, made of
  // part_pieces[r]. `unit` is the same number on all ranks. `space` is borrowed.
  CodedReduce(Communicator& group, std::vector<std::int64_t> part_elements,
              std::vector<std::int64_t> part_offsets, std::vector<GradientPieces> part_pieces,
              codec::GradientWire wire, std::uint64_t unit, std::string name, ReduceSpace& space);

  codec::GradientWire wire() const { return wire_; }

  // `whole`: this rank's gradient of the whole unit, bf16; `sum`: gets that of the own part over all ranks.
  void run(std::span<const std::uint16_t> whole, std::span<float> sum);

  const ReduceCounts& counts() const { return counts_; }

 private:
  std::uint64_t unit_of(int part) const { return unit_ << 32 | static_cast<std::uint32_t>(part); }
  void sum_inside_node(std::span<const std::uint16_t> whole);
  // The messages for other nodes' owners, back to back in the outbox, by owner; returns their sizes.
  std::vector<std::int64_t> encode();
  void exchange(const std::vector<std::int64_t>& sizes);
  void add_nodes(std::span<float> sum);

  Communicator* group_;
  std::vector<std::int64_t> part_elements_, part_offsets_;
  std::vector<GradientPieces> part_pieces_;
  codec::GradientWire wire_;
  std::uint64_t unit_;
  std::string name_;
  ReduceSpace* space_;
  std::vector<int> carried_;               // owners on other nodes whose sums of this node are made here
  std::vector<std::int64_t> sum_offsets_;  // bytes in space_->sums, by owner; -1: not made here
  std::int64_t sums_bytes_ = 0;
  std::vector<std::int64_t> received_;  // bytes from each rank
  ReduceCounts counts_;
};

}  // namespace moesaic
