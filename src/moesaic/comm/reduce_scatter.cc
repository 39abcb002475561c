#include <algorithm>
#include <limits>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

// A part is added slice by slice, while the slice is in the cache, and needs no more memory than two of them
// from each rank: one is received while the other is added. Few slices keep a schedule short.
constexpr std::int64_t kSliceBytes = std::int64_t{1} << 18;
constexpr std::int64_t kMaxSlices = 64;
constexpr int kBanks = 2;
// Of one stream. Enough to keep a link busy; few enough that looking at all messages costs nothing.
constexpr int kSendsUnderWay = 4;
// Two streams may run from one rank to another, each with half of the slots: slices that the receiver owns,
// and slices that it carries, for owners on other nodes. They wait for different things: of one stream, the
// owned slices in front could wait for a sum that waits for the carried ones behind them.
constexpr std::int32_t kSlotsOfStream = 32;
constexpr std::int32_t kOwned = 0, kCarried = kSlotsOfStream;
// Why messages that share a slot meet in order. A send waits for the one kSendsUnderWay before it, a receive
// for a sum of the bank before it; both strides divide kSlotsOfStream.
static_assert(kSlotsOfStream % kSendsUnderWay == 0 && kSlotsOfStream % kBanks == 0);

using Ops = std::vector<std::int32_t>;

// What came `kept` operations before the next one, where there is one.
Ops before(const Ops& ops, int kept) {
  const auto n = static_cast<std::ptrdiff_t>(ops.size());
  return n < kept ? Ops{} : Ops{ops[static_cast<std::size_t>(n - kept)]};
}

// The slices of one rank's part; sender and receiver agree, for both know all counts.
struct Slices {
  Range part;
  std::int64_t bytes;  // of each but the last

  Slices(Range whole, std::int64_t element_bytes) : part(whole) {
    const std::int64_t elements = whole.bytes / element_bytes;
    bytes = std::max(kSliceBytes, (elements + kMaxSlices - 1) / kMaxSlices * element_bytes);
  }
  std::int64_t count() const { return std::max<std::int64_t>(1, (part.bytes + bytes - 1) / bytes); }
  Range at(std::int64_t s) const {
    return {part.buffer, part.offset + s * bytes, std::min(bytes, part.bytes - s * bytes)};
  }
};

// Nothing here waits in a circle. A slice goes one way: to its collector, into a sum, to its owner, into the
// owner's sum. Beside that an operation only waits for memory or for its turn, that is for earlier slices, or
// for the same slice of an earlier owner to be received; and that waits for earlier slices alone.
class ReduceScatter {
 public:
  // `sums`: where in kStaging each node's sum shall lie, by owner; empty: they go to their owners.
  ReduceScatter(const Topology& topology, int rank, DType wire, std::vector<Slices> slices,
                std::vector<std::int64_t> sums = {})
      : topology_(topology),
        rank_(rank),
        home_(topology.node_of(rank)),
        wire_(wire),
        slices_(std::move(slices)),
        sums_(std::move(sums)),
        peers_(topology.peers_after(rank)),
        carried_(topology.stands_for(rank)),
        owned_sends_(slices_.size()),
        carried_sends_(slices_.size()) {
    for (const int peer : peers_) carried_of_peer_.push_back(topology.stands_for(peer));
  }

  Schedule build() {
    lay_out_scratch();
    std::int64_t most_slices = 0;
    for (const Slices& slices : slices_) most_slices = std::max(most_slices, slices.count());
    for (std::int64_t s = 0; s < most_slices; ++s) {
      carry(s);
      own(s);
      contribute(s);
    }
    return std::move(schedule_);
  }

 private:
  // Equal places of scratch memory, `count` to a bank.
  struct Places {
    std::int64_t begin = 0, bytes = 0, count = 0;

    std::int64_t bank(std::int64_t b) const {
      require(
          bytes == 0 || count == 0 || b * count <= (std::numeric_limits<std::int64_t>::max() - begin) / bytes,
          "reduce_scatter_v: {} places for slices of {} bytes exceed 2^63 - 1 bytes", b * count, bytes);
      return begin + b * count * bytes;
    }
    Range at(std::int64_t b, std::int64_t place, std::int64_t slice_bytes) const {
      return {BufferId::kScratch, bank(b) + place * bytes, slice_bytes};
    }
  };

  // Banks of owned slices, banks of carried ones, and carried sums on their way.
  void lay_out_scratch() {
    const auto num_peers = static_cast<std::int64_t>(peers_.size());
    std::int64_t jobs = 0, largest = 0;
    for (const int owner : carried_) {
      if (num_peers == 0) break;  // nothing to add: the own part is sent from where it lies
      jobs += of(owner).count();
      largest = std::max(largest, of(owner).at(0).bytes);
    }
    const std::int64_t other_nodes = sums_.empty() ? topology_.num_nodes() - 1 : 0;
    owned_places_ = {0, of(rank_).at(0).bytes, num_peers + other_nodes};
    carried_places_ = {owned_places_.bank(std::min<std::int64_t>(kBanks, of(rank_).count())), largest,
                       num_peers};
    result_places_ = {carried_places_.bank(std::min<std::int64_t>(kBanks, jobs)), largest, 1};
    schedule_.scratch_bytes =
        result_places_.bank(sums_.empty() ? std::min<std::int64_t>(kSendsUnderWay, jobs) : 0);
  }

  // Slice `s` of this node's sum for `owner`.
  Range staged(int owner, std::int64_t s) const {
    const Range slice = of(owner).at(s);
    return {BufferId::kStaging, sums_[static_cast<std::size_t>(owner)] + s * of(owner).bytes, slice.bytes};
  }
  const Slices& of(int owner) const { return slices_[static_cast<std::size_t>(owner)]; }

  std::int32_t add(Op op, Ops after) {
    op.after = std::move(after);
    schedule_.ops.push_back(std::move(op));
    return static_cast<std::int32_t>(schedule_.ops.size()) - 1;
  }

  // As the next message of `stream`, all of whose messages go to one rank.
  std::int32_t send(Ops& stream, std::int32_t first_slot, int to, Range slice, Ops after = {}) {
    const auto slot = first_slot + static_cast<std::int32_t>(stream.size() % kSlotsOfStream);
    for (const std::int32_t earlier : before(stream, kSendsUnderWay)) after.push_back(earlier);
    stream.push_back(add(send_op(to, slice, slot), std::move(after)));
    return stream.back();
  }

  // Slices of the ranks of this node meet here, for an owner on another node.
  void carry(std::int64_t s) {
    for (const int owner : carried_) {
      if (s >= of(owner).count()) continue;
      const Range mine = of(owner).at(s);
      auto& to_owner = owned_sends_[static_cast<std::size_t>(owner)];
      if (peers_.empty()) {  // alone on its node: its part is the node's sum
        if (sums_.empty()) {
          send(to_owner, kOwned, owner, mine);
        } else {
          add(copy_op(mine, staged(owner, s)), {});
        }
        continue;
      }
      const auto job = static_cast<std::int64_t>(carry_sums_.size());
      const auto slot = kCarried + static_cast<std::int32_t>(job % kSlotsOfStream);
      std::int64_t place = 0;
      Ops needed;
      std::vector<Range> parts;
      for (const int from : topology_.ranks_of(home_)) {
        parts.push_back(from == rank_ ? mine : carried_places_.at(job % kBanks, place++, mine.bytes));
        if (from == rank_) continue;
        needed.push_back(add(receive_op(from, parts.back(), slot), before(carry_sums_, kBanks)));
      }
      if (!sums_.empty()) {
        carry_sums_.push_back(
            add(sum_op({std::move(parts)}, wire_, wire_, staged(owner, s), {}), std::move(needed)));
        continue;
      }
      for (const std::int32_t sent : before(results_sent_, kSendsUnderWay)) needed.push_back(sent);
      const Range result = result_places_.at(job % kSendsUnderWay, 0, mine.bytes);
      carry_sums_.push_back(add(sum_op({std::move(parts)}, wire_, wire_, result, {}), std::move(needed)));
      results_sent_.push_back(send(to_owner, kOwned, owner, result, {carry_sums_.back()}));
    }
  }

  // The own slice: parts of this node's ranks and the sums of the other nodes.
  void own(std::int64_t s) {
    if (s >= of(rank_).count()) return;
    const Range mine = of(rank_).at(s);
    std::int64_t place = 0;
    Ops received;
    const auto inbound = [&](int from) {
      const Range target = owned_places_.at(s % kBanks, place++, mine.bytes);
      const auto slot = kOwned + static_cast<std::int32_t>(s % kSlotsOfStream);
      received.push_back(add(receive_op(from, target, slot), before(own_sums_, kBanks)));
      return target;
    };
    std::vector<std::vector<Range>> parts;
    for (int node = 0; node < topology_.num_nodes(); ++node) {
      if (node != home_ && !sums_.empty()) continue;
      auto& of_node = parts.emplace_back();
      if (node != home_) {
        of_node.push_back(inbound(topology_.counterpart(rank_, node)));
        continue;
      }
      for (const int from : topology_.ranks_of(home_)) {
        of_node.push_back(from == rank_ ? mine : inbound(from));
      }
    }
    if (!sums_.empty()) {
      own_sums_.push_back(
          add(sum_op(std::move(parts), wire_, wire_, staged(rank_, s), {}), std::move(received)));
      return;
    }
    const auto in_fp32 = [&](std::int64_t bytes) { return bytes / size_of(wire_) * size_of(DType::kF32); };
    const Range target{BufferId::kOutput, in_fp32(s * of(rank_).bytes), in_fp32(mine.bytes)};
    own_sums_.push_back(add(sum_op(std::move(parts), wire_, DType::kF32, target, {}), std::move(received)));
  }

  // Slices to the ranks of this node: what they carry (it has further to go), then what they own.
  void contribute(std::int64_t s) {
    for (std::size_t p = 0; p < peers_.size(); ++p) {
      const auto peer = static_cast<std::size_t>(peers_[p]);
      for (const int owner : carried_of_peer_[p]) {
        if (s < of(owner).count()) send(carried_sends_[peer], kCarried, peers_[p], of(owner).at(s));
      }
      if (s < slices_[peer].count()) send(owned_sends_[peer], kOwned, peers_[p], slices_[peer].at(s));
    }
  }

  const Topology& topology_;
  int rank_, home_;
  DType wire_;
  std::vector<Slices> slices_;  // by owner
  std::vector<std::int64_t> sums_;
  std::vector<int> peers_;    // of this node
  std::vector<int> carried_;  // owners on other nodes that this rank carries for
  std::vector<std::vector<int>> carried_of_peer_;
  Places owned_places_, carried_places_, result_places_;
  std::vector<Ops> owned_sends_, carried_sends_;  // by receiver
  Ops own_sums_, carry_sums_, results_sent_;
  Schedule schedule_;
};

std::vector<Slices> checked_slices(const Topology& topology, int rank, DType wire,
                                   std::span<const std::int64_t> elements_per_rank,
                                   std::span<const std::int64_t> offsets) {
  const int world_size = topology.world_size();
  require_rank("reduce_scatter_v: rank", rank, world_size);
  require(wire == DType::kF32 || wire == DType::kBF16,
          "reduce_scatter_v: the wire must be fp32 or bf16, got {}", name_of(wire));
  const auto begin =
      placed_offsets("reduce_scatter_v", offsets, elements_per_rank, world_size, size_of(wire));
  std::vector<Slices> slices;
  for (std::size_t r = 0; r < begin.size(); ++r) {
    const Range part{BufferId::kInput, begin[r], elements_per_rank[r] * size_of(wire)};
    slices.emplace_back(part, size_of(wire));
  }
  return slices;
}

}  // namespace

Schedule reduce_scatter_v_schedule(const Topology& topology, int rank, DType wire,
                                   std::span<const std::int64_t> elements_per_rank,
                                   std::span<const std::int64_t> offsets) {
  return ReduceScatter(topology, rank, wire, checked_slices(topology, rank, wire, elements_per_rank, offsets))
      .build();
}

Schedule node_sums_schedule(const Topology& topology, int rank, DType wire,
                            std::span<const std::int64_t> elements_per_rank,
                            std::span<const std::int64_t> offsets,
                            std::span<const std::int64_t> sum_offsets) {
  require(std::ssize(sum_offsets) == topology.world_size(),
          "node_sums: expected one offset per rank ({}), got {}", topology.world_size(), sum_offsets.size());
  return ReduceScatter(topology, rank, wire, checked_slices(topology, rank, wire, elements_per_rank, offsets),
                       {sum_offsets.begin(), sum_offsets.end()})
      .build();
}

}  // namespace moesaic
