#include "moesaic/shard/collect.h"

#include "moesaic/comm/collectives.h"

namespace moesaic {

int writer_of(const UnitLayout& layout, int unit, int block) {
  const std::vector<int> owners = layout.owners(block);
  return owners[static_cast<std::size_t>(unit) % owners.size()];
}

std::optional<int> block_written_by(const UnitLayout& layout, int unit, int rank) {
  const int block = layout.block_of(rank);
  if (writer_of(layout, unit, block) != rank) return std::nullopt;
  return block;
}

Buffer collect_block(Communicator& world, const UnitLayout& layout, int unit, std::span<const float> shard) {
  const auto world_size = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> send_bytes(world_size), receive_bytes(world_size);
  const int writer = writer_of(layout, unit, layout.block_of(world.rank()));
  send_bytes[static_cast<std::size_t>(writer)] = static_cast<std::int64_t>(shard.size_bytes());
  Buffer block;
  if (const auto mine = block_written_by(layout, unit, world.rank())) {
    // Owners ascend and so do their parts: what arrives by rank is the block in order.
    for (const int owner : layout.owners(*mine)) {
      receive_bytes[static_cast<std::size_t>(owner)] =
          layout.part_of(owner).size() * std::int64_t{sizeof(float)};
    }
    block = Buffer(layout.block_elements(*mine) * std::int64_t{sizeof(float)});
  }
  all_to_all_v(world, std::as_bytes(shard), send_bytes, block.span(), receive_bytes);
  return block;
}

}  // namespace moesaic
