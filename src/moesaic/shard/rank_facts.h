// rank_facts.h: what every rank has seen of each unit in a step, made known to all, so that all decide alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/communicator.h"

namespace moesaic {

// Facts of all ranks of a world about the same units.
template <typename Facts>
class RankFacts {
  static_assert(std::is_trivially_copyable_v<Facts>);

 public:
  // Collective; mine[i] is about unit i.
  RankFacts(Communicator& world, const std::vector<Facts>& mine)
      : world_(&world), units_(mine.size()), all_(mine.size() * static_cast<std::size_t>(world.size())) {
    const auto bytes = std::ssize(mine) * static_cast<std::int64_t>(sizeof(Facts));
    all_gather_v(world, std::as_bytes(std::span(mine)),
                 std::vector<std::int64_t>(static_cast<std::size_t>(world.size()), bytes),
                 std::as_writable_bytes(std::span(all_)));
  }

  // Calls each(facts) for every rank of the world, ascending.
  template <typename Each>
  void for_each(std::size_t unit, const Each& each) const {
    for (std::size_t at = unit; at < all_.size(); at += units_) each(all_[at]);
  }

  // Calls each(facts) for every rank of `group`, which lies within the world, in ascending order of the
  // world.
  template <typename Each>
  void for_each_of(const Communicator& group, std::size_t unit, const Each& each) const {
    std::vector<int> members;
    for (int member = 0; member < group.size(); ++member) members.push_back(group.world_rank(member));
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (std::find(members.begin(), members.end(), world_->world_rank(rank)) == members.end()) continue;
      each(all_[static_cast<std::size_t>(rank) * units_ + unit]);
    }
  }

 private:
  const Communicator* world_;
  std::size_t units_;
  std::vector<Facts> all_;
};

}  // namespace moesaic
