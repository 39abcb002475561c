// placement.h: which ranks own each expert of one layer. Ownership is always looked up here, never computed.
//
// The world is cut into exchange groups of `exchange_size` consecutive ranks; each group owns every expert
// once, so an expert has one owner per group. The owners of an expert share its master weights (shards of
// equal size). Local; pure data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

class Placement {
 public:
  // Experts in order, as evenly as they go: the first E mod X ranks of a group hold one more.
  // E = 30, X = 8: 4,4,4,4,4,4,3,3. exchange_size 0 = the largest divisor of world_size that is <=
  // num_experts. InvalidArgument unless exchange_size divides world_size and is at most num_experts.
  static Placement contiguous(int num_experts, int world_size, int exchange_size = 0);

  // owner_in_group[e] = the place (0..exchange_size-1) within each group that owns expert e.
  static Placement from_table(std::vector<int> owner_in_group, int world_size, int exchange_size);

  // The same experts seen by a rank that holds all of them (gathered): one group of one rank, experts stacked
  // in the order of the places, then as in experts_of.
  Placement gathered() const;

  int num_experts() const { return static_cast<int>(owner_in_group_.size()); }
  int world_size() const { return world_size_; }
  int exchange_size() const { return exchange_size_; }
  int num_groups() const { return world_size_ / exchange_size_; }
  int group_of(int rank) const { return rank / exchange_size_; }

  // The place within an exchange group that owns `expert`; the world rank is group * exchange_size + place.
  int owner_in_group(int expert) const { return owner_in_group_.at(static_cast<std::size_t>(expert)); }
  // Experts owned by the rank at `place` of every group, ascending (gathered(): by place, then ascending).
  std::span<const int> experts_of(int place) const { return experts_of_.at(static_cast<std::size_t>(place)); }
  // Position of `expert` in experts_of(owner_in_group(expert)).
  int local_index(int expert) const { return local_index_.at(static_cast<std::size_t>(expert)); }

 private:
  static Placement from_lists(std::vector<std::vector<int>> experts_of, int num_experts, int world_size);

  int world_size_ = 1, exchange_size_ = 1;
  std::vector<int> owner_in_group_, local_index_;
  std::vector<std::vector<int>> experts_of_;
};

}  // namespace moesaic
