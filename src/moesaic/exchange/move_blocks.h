// move_blocks.h: where the blocks of an exchange lie at their two ends, and moving them along a route.
//
// X ranks of the exchange group on N nodes. Sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/comm/pending.h"
#include "moesaic/core/buffer.h"
#include "moesaic/exchange/block_schedule.h"
#include "moesaic/exchange/counts.h"

namespace moesaic {

// counts[i] * bytes_each.
std::vector<std::int64_t> scaled(std::span<const std::int64_t> counts, std::int64_t bytes_each);
// [X*X] with `from` and `to` exchanged: the way back.
std::vector<std::int64_t> transposed(std::span<const std::int64_t> matrix, int group_size);
// Of rows of that size, on the way out or back.
BlockBytes bytes_of_rows(const RowCounts& counts, std::int64_t bytes_per_row, int group_size, bool back);

struct Places {
  BlockPlaces begin;
  std::int64_t bytes = 0;  // of the whole
};

// Blocks to or from all ranks, ascending, the own one among them.
Places places_by_rank(std::span<const std::int64_t> bytes_of_rank);

// How the source of tokens packs rows it sends, and finds those that come home: other ranks of its node, then
// node by node: a block for each of its ranks, or (kRailDedup) one for the node. So that the blocks of a
// message lie together on every route. Own rows are not in it.
Places places_at_source(Route route, const Topology& topology, int rank, const RowCounts& counts,
                        std::int64_t bytes_per_row);

// Memory in which NodeWork's ranges lie.
struct BlockMemory {
  std::span<const std::byte> input;
  std::span<std::byte> output, staging;

  const std::byte* read(const Range& range) const;
  std::byte* write(const Range& range) const;
};
using OnNodeWork = std::function<void(const NodeWork&, const BlockMemory&)>;

// The ends of a move: blocks begin in `input` at `from` and end in `output` at `to`.
struct BlockEnds {
  const BlockPlaces& from;
  std::span<const std::byte> input;
  const BlockPlaces& to;
  std::span<std::byte> output;
};

// Collective. The steps of this rank. `name` is for error messages.
void move_blocks(Communicator& group, std::string_view name, const Steps& steps, const BlockBytes& bytes,
                 const BlockEnds& ends, const OnNodeWork& node_work = {});

// The same on the group's background thread, where moves run one after another, or, without `background`, at
// once. Input, output and what `node_work` reads are borrowed until wait() returns. `name`: of static
// storage, for it is the move's name in a trace, too.
class MovingBlocks {
 public:
  MovingBlocks() = default;  // already there
  MovingBlocks(Communicator& group, bool background, std::string_view name, const Steps& steps,
               const BlockBytes& bytes, const BlockEnds& ends, OnNodeWork node_work = {});
  MovingBlocks(MovingBlocks&&) = default;
  MovingBlocks& operator=(MovingBlocks&& other) noexcept {
    pending_ = std::move(other.pending_);  // first: over before what it uses goes
    work_ = std::move(other.work_);
    return *this;
  }
  void wait() { pending_.wait(); }

 private:
  struct Work {
    BlockSchedule plan;
    Buffer staging;
    BlockMemory memory;
    OnNodeWork on_node;
  };
  std::unique_ptr<Work> work_;
  Pending pending_;  // last: the same
};

}  // namespace moesaic
