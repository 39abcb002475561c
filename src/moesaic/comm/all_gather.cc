#include <cstddef>
#include <vector>

#include "moesaic/comm/algorithms.h"
#include "moesaic/comm/layout.h"

namespace moesaic {
namespace {

// A rank's part as it travels between nodes, and as the ranks of a node hand it to each other.
struct Part {
  Range far, near;
};
// The parts that the caller hears of (kNotify) when they are in.
enum class Tell {
  kNothing,
  kEveryPart,
  kCarriedParts,  // and they are handed on only then
};

// The own part has slot 0; carried parts take turns with the others. A pair of ranks whose slots are used up
// moves the next part of a slot when the one before is through, at both ends, so that they meet in order.
constexpr std::size_t kCarrySlots = 63;
std::int32_t carry_slot(std::size_t i) { return 1 + static_cast<std::int32_t>(i % kCarrySlots); }
std::vector<std::int32_t> before_in_slot(const std::vector<std::int32_t>& ops) {
  if (ops.size() < kCarrySlots) return {};
  return {ops[ops.size() - kCarrySlots]};
}

// Builds the schedule of one rank: parts cross to the owner's counterpart on each other node, which hands
// them to its peers.
class Gather {
 public:
  Gather(const Topology& topology, int rank, std::vector<Part> parts, Tell tell)
      : topology_(topology),
        rank_(rank),
        parts_(std::move(parts)),
        tell_(tell),
        peers_(topology.peers_after(rank)),
        carried_(topology.stands_for(rank)),
        may_hand_on_(carried_.size()) {}

  void receive_from_other_nodes() {
    for (std::size_t i = 0; i < carried_.size(); ++i) {
      may_hand_on_[i] = {add(receive_op(carried_[i], at(carried_[i]).far))};
      if (tell_ == Tell::kNothing) continue;
      const std::int32_t told = tell(carried_[i], may_hand_on_[i]);
      if (tell_ == Tell::kCarriedParts) may_hand_on_[i] = {told};
    }
  }
  void receive_inside_node() {
    for (const int peer : peers_) {
      receive_near(peer, peer, 0, {});
      std::vector<std::int32_t> earlier;
      for (const int owner : topology_.stands_for(peer)) {
        earlier.push_back(receive_near(peer, owner, carry_slot(earlier.size()), before_in_slot(earlier)));
      }
    }
  }
  void send_to_other_nodes() {
    const int home = topology_.node_of(rank_), num_nodes = topology_.num_nodes();
    for (int step = 1; step < num_nodes; ++step) {
      add(send_op(topology_.counterpart(rank_, (home + step) % num_nodes), at(rank_).far));
    }
  }
  void send_own_inside_node() {
    for (const int peer : peers_) add(send_op(peer, at(rank_).near));
  }
  void hand_on_inside_node() {
    for (const int peer : peers_) {
      std::vector<std::int32_t> earlier;
      for (std::size_t i = 0; i < carried_.size(); ++i) {
        auto after = before_in_slot(earlier);
        after.insert(after.end(), may_hand_on_[i].begin(), may_hand_on_[i].end());
        earlier.push_back(add(send_op(peer, at(carried_[i]).near, carry_slot(i)), std::move(after)));
      }
    }
  }
  // Of the own part: all own messages that wait for nothing are under way.
  void tell_own() { tell(rank_, {}); }

  std::int32_t add(Op op, std::vector<std::int32_t> after = {}) {
    op.after = std::move(after);
    schedule_.ops.push_back(std::move(op));
    return static_cast<std::int32_t>(schedule_.ops.size()) - 1;
  }
  Schedule take() { return std::move(schedule_); }

 private:
  const Part& at(int owner) const { return parts_[static_cast<std::size_t>(owner)]; }
  std::int32_t tell(int owner, std::vector<std::int32_t> after) {
    return add({.kind = OpKind::kNotify, .peer = owner, .target = at(owner).far}, std::move(after));
  }
  std::int32_t receive_near(int peer, int owner, std::int32_t slot, std::vector<std::int32_t> after) {
    const std::int32_t received = add(receive_op(peer, at(owner).near, slot), std::move(after));
    if (tell_ == Tell::kEveryPart) tell(owner, {received});
    return received;
  }

  const Topology& topology_;
  int rank_;
  std::vector<Part> parts_;
  Tell tell_;
  std::vector<int> peers_, carried_;
  std::vector<std::vector<std::int32_t>> may_hand_on_;  // what each carried part waits for
  Schedule schedule_;
};

std::vector<Part> checked(const Topology& topology, int rank, std::span<const CodedPart> parts,
                          InsideNode inside) {
  require_rank("coded_gather: rank", rank, topology.world_size());
  require(std::ssize(parts) == topology.world_size(), "coded_gather: expected one part per rank ({}), got {}",
          topology.world_size(), parts.size());
  std::vector<Part> result;
  for (const CodedPart& part : parts) {
    result.push_back({part.coded, inside == InsideNode::kPlain ? part.plain : part.coded});
  }
  return result;
}

}  // namespace

Schedule all_gather_v_schedule(const Topology& topology, int rank,
                               std::span<const std::int64_t> bytes_per_rank,
                               std::span<const std::int64_t> offsets) {
  require_rank("all_gather_v: rank", rank, topology.world_size());
  const auto begin = placed_offsets("all_gather_v", offsets, bytes_per_rank, topology.world_size());
  std::vector<Part> parts;
  for (std::size_t r = 0; r < begin.size(); ++r) {
    const Range there{BufferId::kOutput, begin[r], bytes_per_rank[r]};
    parts.push_back({there, there});
  }
  const auto self = static_cast<std::size_t>(rank);
  const Range target = parts[self].near, mine{BufferId::kInput, 0, bytes_per_rank[self]};
  parts[self] = {mine, mine};

  Gather gather(topology, rank, std::move(parts), Tell::kNothing);
  gather.receive_from_other_nodes();
  gather.receive_inside_node();
  gather.send_to_other_nodes();  // the slow links first
  gather.send_own_inside_node();
  gather.hand_on_inside_node();
  gather.add(copy_op(mine, target));
  return gather.take();
}

Schedule coded_gather_schedule(const Topology& topology, int rank, std::span<const CodedPart> parts,
                               InsideNode inside) {
  Gather gather(topology, rank, checked(topology, rank, parts, inside),
                inside == InsideNode::kPlain ? Tell::kCarriedParts : Tell::kEveryPart);
  gather.receive_from_other_nodes();
  gather.receive_inside_node();
  gather.send_to_other_nodes();
  gather.send_own_inside_node();
  gather.tell_own();
  gather.hand_on_inside_node();
  return gather.take();
}

Schedule inside_node_schedule(const Topology& topology, int rank, std::span<const CodedPart> parts) {
  Gather gather(topology, rank, checked(topology, rank, parts, InsideNode::kPlain), Tell::kNothing);
  gather.receive_inside_node();
  gather.send_own_inside_node();
  gather.hand_on_inside_node();
  return gather.take();
}

}  // namespace moesaic
