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
  require(exchange_size >= 0, "placement: exchange_size is {}, expected 0 (automatic) or more", exchange_size);
  if (exchange_size == 0) exchange_size = largest_divisor_up_to(world_size, num_experts);
  require(exchange_size <= num_experts,
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
          "placement: exchange_size is {}, expected a divisor of the world size {}", exchange_size, world_size);
  Placement placement;
  placement.world_size_ = world_size;
  placement.exchange_size_ = exchange_size;
  placement.experts_of_.resize(static_cast<std::size_t>(exchange_size));
  for (std::size_t e = 0; e < owner_in_group.size(); ++e) {
    const int place = owner_in_group[e];
    require(place >= 0 && place < exchange_size, "placement: expert {} has owner {}, expected 0..{}", e, place,
            exchange_size - 1);
    auto& experts = placement.experts_of_[static_cast<std::size_t>(place)];
    placement.local_index_.push_back(static_cast<int>(experts.size()));
    experts.push_back(static_cast<int>(e));
  }
  placement.owner_in_group_ = std::move(owner_in_group);
  return placement;
}

}  // namespace moesaic
