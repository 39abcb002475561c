#include "moesaic/exchange/block_schedule.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

constexpr std::size_t kSlots = 64;

using Ops = std::vector<std::int32_t>;

class Builder {
 public:
  Builder(const Topology& topology, int rank, const BlockBytes& bytes, const BlockPlaces& input,
          const BlockPlaces& output, bool has_node_work)
      : topology_(topology),
        rank_(rank),
        home_(topology.node_of(rank)),
        bytes_(bytes),
        output_(output),
        between_(has_node_work ? BufferId::kStaging : BufferId::kScratch),
        sent_(static_cast<std::size_t>(topology.world_size())),
        received_(sent_) {
    for (int to = 0; to < topology.world_size() && !input.of_ranks.empty(); ++to) {
      begins_here({.from = rank, .to = to}, input.of_ranks[static_cast<std::size_t>(to)]);
    }
    for (int node = 0; node < topology.num_nodes() && !input.of_nodes.empty(); ++node) {
      begins_here({Block::Kind::kToNode, rank, node}, input.of_nodes[static_cast<std::size_t>(node)]);
    }
  }

  void add(const Step& step) {
    if (step.kind == Step::Kind::kSpread) {
      spread(step.blocks.front());
    } else if (step.kind == Step::Kind::kSum) {
      sum(step.blocks.front());
    } else if (step.to == rank_) {
      receive(step);
    } else {
      send(step);
    }
  }

  BlockSchedule take() {
    (between_ == BufferId::kStaging ? result_.staging_bytes : result_.schedule.scratch_bytes) = allocated_;
    return std::move(result_);
  }

 private:
  // Where a block lies and what must have happened before it is read.
  struct Place {
    Range range;
    Ops after;
  };
  using Key = std::tuple<Block::Kind, int, int>;
  static Key key_of(const Block& block) { return {block.kind, block.from, block.to}; }

  void begins_here(const Block& block, std::int64_t offset) {
    places_[key_of(block)] = {{BufferId::kInput, offset, bytes_.of(block, topology_)}, {}};
  }
  const Place& place_of(const Block& block) const {
    const auto found = places_.find(key_of(block));
    require(found != places_.end(), "route: rank {} has no block from {} to {} to send", rank_, block.from,
            block.to);
    return found->second;
  }
  bool ends_here(const Block& block) const {
    if (block.kind == Block::Kind::kToNode) return !output_.of_nodes.empty();
    return block.to == rank_;
  }
  Range final_range(const Block& block) const {
    const auto& begin = block.kind == Block::Kind::kRanks ? output_.of_ranks : output_.of_nodes;
    return {BufferId::kOutput, begin.at(static_cast<std::size_t>(block.from)), bytes_.of(block, topology_)};
  }

  Range allocate(std::int64_t bytes) {
    const Range range{between_, allocated_, bytes};
    allocated_ += bytes;
    return range;
  }
  std::int32_t add(Op op, Ops after) {
    op.after = std::move(after);
    result_.schedule.ops.push_back(std::move(op));
    return static_cast<std::int32_t>(result_.schedule.ops.size()) - 1;
  }
  // As the next message of a pair of ranks.
  std::int32_t message(Ops& earlier, Op op, Ops after) {
    op.slot = static_cast<std::int32_t>(earlier.size() % kSlots);
    if (earlier.size() >= kSlots) after.push_back(earlier[earlier.size() - kSlots]);
    earlier.push_back(add(std::move(op), std::move(after)));
    return earlier.back();
  }

  // One range where they lie back to back; empty ones lie anywhere.
  static bool joined(const std::vector<Range>& ranges, Range& whole) {
    whole = {BufferId::kInput, 0, 0};
    for (const Range& range : ranges) {
      if (range.bytes == 0) continue;
      if (whole.bytes == 0) {
        whole = range;
      } else if (range.buffer == whole.buffer && range.offset == whole.offset + whole.bytes) {
        whole.bytes += range.bytes;
      } else {
        return false;
      }
    }
    return true;
  }

  void send(const Step& step) {
    std::vector<Range> parts;
    Ops after;
    for (const Block& block : step.blocks) {
      const Place& place = place_of(block);
      parts.push_back(place.range);
      for (const std::int32_t op : place.after) {
        if (after.empty() || after.back() != op) after.push_back(op);
      }
    }
    Range whole;
    if (!joined(parts, whole)) {
      std::int64_t bytes = 0;
      for (const Range& part : parts) bytes += part.bytes;
      whole = allocate(bytes);
      Ops copies;
      std::int64_t begin = whole.offset;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const Range target{whole.buffer, begin, parts[i].bytes};
        begin += target.bytes;
        if (target.bytes > 0)
          copies.push_back(add(copy_op(parts[i], target), place_of(step.blocks[i]).after));
      }
      after = std::move(copies);
    }
    message(sent_[static_cast<std::size_t>(step.to)], send_op(step.to, whole), std::move(after));
  }

  void receive(const Step& step) {
    std::int64_t bytes = 0;
    bool all_end = true;
    std::vector<Range> targets;
    for (const Block& block : step.blocks) {
      bytes += bytes_.of(block, topology_);
      all_end = all_end && ends_here(block);
      if (all_end) targets.push_back(final_range(block));
    }
    Range whole;
    const bool direct = all_end && joined(targets, whole);
    if (direct && bytes == 0) whole = {BufferId::kOutput, 0, 0};
    if (!direct) whole = allocate(bytes);
    const std::int32_t in =
        message(received_[static_cast<std::size_t>(step.from)], receive_op(step.from, whole), {});
    std::int64_t begin = whole.offset;
    for (const Block& block : step.blocks) {
      const Range part{whole.buffer, begin, bytes_.of(block, topology_)};
      begin += part.bytes;
      if (!direct && ends_here(block) && part.bytes > 0) add(copy_op(part, final_range(block)), {in});
      places_[key_of(block)] = {part, {in}};
    }
  }

  // The block of a rank of this node that a kSpread fills.
  void spread(const Block& rows) {
    const Place& from = place_of(rows);
    NodeWork work{.rank = rows.from, .node_block = from.range, .of_ranks = {}};
    for (const int to : topology_.ranks_of(home_)) {
      const Block block{.from = rows.from, .to = to};
      work.of_ranks.push_back(to == rank_ ? final_range(block) : allocate(bytes_.of(block, topology_)));
    }
    const std::int32_t done = notify(work, from.after);
    std::size_t i = 0;
    for (const int to : topology_.ranks_of(home_)) {
      places_[{Block::Kind::kRanks, rows.from, to}] = {work.of_ranks[i++], {done}};
    }
    result_.node_work.push_back(std::move(work));
  }

  void sum(const Block& sums) {
    NodeWork work{.rank = sums.to, .node_block = allocate(bytes_.of(sums, topology_)), .of_ranks = {}};
    Ops after;
    for (const int from : topology_.ranks_of(home_)) {
      const Place& place = place_of({.from = from, .to = sums.to});
      work.of_ranks.push_back(place.range);
      after.insert(after.end(), place.after.begin(), place.after.end());
    }
    places_[key_of(sums)] = {work.node_block, {notify(work, std::move(after))}};
    result_.node_work.push_back(std::move(work));
  }

  std::int32_t notify(const NodeWork& work, Ops after) {
    return add({.kind = OpKind::kNotify, .peer = work.rank, .target = work.node_block}, std::move(after));
  }

  const Topology& topology_;
  int rank_, home_;
  const BlockBytes& bytes_;
  const BlockPlaces& output_;
  BufferId between_;
  std::int64_t allocated_ = 0;
  std::map<Key, Place> places_;
  std::vector<Ops> sent_, received_;  // by peer
  BlockSchedule result_;
};

}  // namespace

std::size_t BlockBytes::index(const Block& block, const Topology& topology) {
  const int size = topology.world_size();
  if (block.kind == Block::Kind::kRanks) return static_cast<std::size_t>(block.from * size + block.to);
  const bool to_node = block.kind == Block::Kind::kToNode;
  const int rank = to_node ? block.from : block.to, node = to_node ? block.to : block.from;
  return static_cast<std::size_t>(size * size + rank * topology.num_nodes() + node);
}

const NodeWork& BlockSchedule::work_for(int rank) const {
  const auto found = std::ranges::find(node_work, rank, &NodeWork::rank);
  require(found != node_work.end(), "route: no work on a node block of rank {} here", rank);
  return *found;
}

BlockSchedule block_schedule(const Topology& topology, int rank, const Steps& steps, const BlockBytes& bytes,
                             const BlockPlaces& input, const BlockPlaces& output) {
  require_rank("route: rank", rank, topology.world_size());
  const auto size = static_cast<std::size_t>(topology.world_size());
  require(bytes.of_ranks.size() == size * size, "route: sizes of {} blocks, expected {}",
          bytes.of_ranks.size(), size * size);
  const bool has_node_work =
      std::ranges::any_of(steps, [](const Step& step) { return step.kind != Step::Kind::kMove; });
  Builder builder(topology, rank, bytes, input, output, has_node_work);
  for (const Step& step : steps) {
    if (step.from == rank || step.to == rank) builder.add(step);
  }
  return builder.take();
}

}  // namespace moesaic
