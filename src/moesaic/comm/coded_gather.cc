#include <vector>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

// Slots of one pair of ranks: the sender's own part, then those it carries, ascending.
constexpr std::int32_t kOwnSlot = 0;
constexpr std::size_t kCarriedSlots = 63;

class Builder {
 public:
  Builder(const Topology& topology, int rank, std::span<const CodedPart> parts, InsideNode inside)
      : topology_(topology), rank_(rank), parts_(parts), plain_(inside == InsideNode::kPlain) {
    require_rank("coded_gather: rank", rank, topology.world_size());
    require(std::ssize(parts) == topology.world_size(),
            "coded_gather: expected one part per rank ({}), got {}", topology.world_size(), parts.size());
    for (int step = 1; step < topology.world_size(); ++step) {
      const int peer = (rank + step) % topology.world_size();
      if (topology.node_of(peer) == topology.node_of(rank)) peers_.push_back(peer);
    }
  }

  // Own coded bytes leave, those of other nodes' parts come in; returns what each of the latter waits for
  // before it may be handed on, by carried part.
  std::vector<std::vector<std::int32_t>> cross() {
    const int node = topology_.node_of(rank_);
    for (int step = 1; step < topology_.num_nodes(); ++step) {
      const int there = (node + step) % topology_.num_nodes();
      add(send_op(topology_.counterpart(rank_, there), coded_of(rank_), kOwnSlot));
    }
    std::vector<std::vector<std::int32_t>> ready;
    for (const int owner : carried_by(rank_)) {
      const std::int32_t received = add(receive_op(owner, coded_of(owner), kOwnSlot));
      const std::int32_t decoded = notify(owner, {received});
      ready.push_back({plain_ ? decoded : received});
    }
    return ready;
  }

  void hand_on(const std::vector<std::vector<std::int32_t>>& ready) {
    for (const int peer : peers_) {
      add(send_op(peer, near_of(rank_), kOwnSlot));
      receive(peer, peer, kOwnSlot, {});
    }
    notify(rank_, {});
    const std::vector<int> carried = carried_by(rank_);
    for (const int peer : peers_) {
      std::vector<std::int32_t> sends, receives;
      for (std::size_t i = 0; i < carried.size(); ++i) {
        sends.push_back(add(send_op(peer, near_of(carried[i]), slot_of(i)), chained(sends, ready[i])));
      }
      const std::vector<int> theirs = carried_by(peer);
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        receives.push_back(receive(peer, theirs[i], slot_of(i), chained(receives, {})));
      }
    }
  }

  std::size_t num_carried() const { return carried_by(rank_).size(); }
  Schedule take() { return std::move(schedule_); }

 private:
  Range coded_of(int owner) const { return parts_[static_cast<std::size_t>(owner)].coded; }
  // What the ranks of a node hand each other.
  Range near_of(int owner) const {
    return plain_ ? parts_[static_cast<std::size_t>(owner)].plain : coded_of(owner);
  }

  // The parts of other nodes that `carrier` hands to its node, ascending.
  std::vector<int> carried_by(int carrier) const {
    std::vector<int> owners;
    const int node = topology_.node_of(carrier);
    for (int owner = 0; owner < topology_.world_size(); ++owner) {
      if (topology_.node_of(owner) != node && topology_.counterpart(owner, node) == carrier)
        owners.push_back(owner);
    }
    return owners;
  }

  std::int32_t add(Op op, std::vector<std::int32_t> after = {}) {
    op.after = std::move(after);
    schedule_.ops.push_back(std::move(op));
    return static_cast<std::int32_t>(schedule_.ops.size()) - 1;
  }
  std::int32_t notify(int owner, std::vector<std::int32_t> after) {
    return add({.kind = OpKind::kNotify, .peer = owner, .target = coded_of(owner)}, std::move(after));
  }
  // From inside the node.
  std::int32_t receive(int peer, int owner, std::int32_t slot, std::vector<std::int32_t> after) {
    const std::int32_t received = add(receive_op(peer, near_of(owner), slot), std::move(after));
    if (!plain_) notify(owner, {received});
    return received;
  }

  // Of the i-th part that one rank carries to another; it waits for the one that had the slot before.
  static std::int32_t slot_of(std::size_t i) { return 1 + static_cast<std::int32_t>(i % kCarriedSlots); }
  static std::vector<std::int32_t> chained(const std::vector<std::int32_t>& earlier,
                                           std::vector<std::int32_t> after) {
    if (earlier.size() >= kCarriedSlots) after.push_back(earlier[earlier.size() - kCarriedSlots]);
    return after;
  }

  const Topology& topology_;
  int rank_;
  std::span<const CodedPart> parts_;
  bool plain_;
  std::vector<int> peers_;  // of the node, from the next rank on
  Schedule schedule_;
};

}  // namespace

Schedule coded_gather_schedule(const Topology& topology, int rank, std::span<const CodedPart> parts,
                               InsideNode inside) {
  Builder builder(topology, rank, parts, inside);
  const auto ready = builder.cross();  // first, for its bytes have the longest way
  builder.hand_on(ready);
  return builder.take();
}

Schedule inside_node_schedule(const Topology& topology, int rank, std::span<const CodedPart> parts) {
  Builder builder(topology, rank, parts, InsideNode::kPlain);
  builder.hand_on(std::vector<std::vector<std::int32_t>>(builder.num_carried()));
  return builder.take();
}

}  // namespace moesaic
