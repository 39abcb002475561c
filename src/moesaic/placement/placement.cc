#include "moesaic/placement/placement.h"

#include <algorithm>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

int largest_divisor_up_to(int number, int limit) {
  for (int d = std::min(number, limit); d > 1; --d) {
    if (number % d == 0) return d;
  }
  return 1;
}

}  // namespace

Placement Placement::contiguous(int num_experts, int world_size, int exchange_size) {
  require(num_experts > 0, "placement: num_experts is {}, expected at least 1", num_experts);
  require(world_size > 0, "placement: world_size is {}, expected at least 1", world_size);
  require(exchange_size >= 0, "placement: exchange_size is {}, expected 0 (automatic) or more",
          exchange_size);
  if (exchange_size == 0) exchange_size = largest_divisor_up_to(world_size, num_experts);
  require(
      exchange_size <= num_experts,
      "placement: exchange_size is {}, more than the {} experts; a group must not have ranks without experts",
      exchange_size, num_experts);
  std::vector<int> table;
  const int share = num_experts / exchange_size, extra = num_experts % exchange_size;
  for (int place = 0; place < exchange_size; ++place) {
    table.insert(table.end(), static_cast<std::size_t>(share + (place < extra ? 1 : 0)), place);
  }
  return from_table(std::move(table), world_size, exchange_size);
}

Placement Placement::from_table(std::vector<int> owner_in_group, int world_size, int exchange_size) {
  require(exchange_size >= 1 && world_size % exchange_size == 0,
          "placement: exchange_size is {}, expected a divisor of the world size {}", exchange_size,
          world_size);
  std::vector<std::vector<int>> experts_of(static_cast<std::size_t>(exchange_size));
  for (std::size_t e = 0; e < owner_in_group.size(); ++e) {
    const int place = owner_in_group[e];
    require(place >= 0 && place < exchange_size, "placement: expert {} has owner {}, expected 0..{}", e,
            place, exchange_size - 1);
    experts_of[static_cast<std::size_t>(place)].push_back(static_cast<int>(e));
  }
  return from_lists(std::move(experts_of), static_cast<int>(owner_in_group.size()), world_size);
}

Placement Placement::gathered() const {
  std::vector<int> all;
  for (const auto& experts : experts_of_) all.insert(all.end(), experts.begin(), experts.end());
  return from_lists({std::move(all)}, num_experts(), 1);
}

Placement Placement::from_lists(std::vector<std::vector<int>> experts_of, int num_experts, int world_size) {
  Placement placement;
  placement.world_size_ = world_size;
  placement.exchange_size_ = static_cast<int>(experts_of.size());
  placement.owner_in_group_.resize(static_cast<std::size_t>(num_experts));
  placement.local_index_.resize(static_cast<std::size_t>(num_experts));
  for (std::size_t place = 0; place < experts_of.size(); ++place) {
    for (std::size_t i = 0; i < experts_of[place].size(); ++i) {
      const auto expert = static_cast<std::size_t>(experts_of[place][i]);
      placement.owner_in_group_[expert] = static_cast<int>(place);
      placement.local_index_[expert] = static_cast<int>(i);
    }
  }
  placement.experts_of_ = std::move(experts_of);
  return placement;
}

}  // namespace moesaic
