#include "moesaic/shard/unit_layout.h"

#include <algorithm>

namespace moesaic {
namespace {

// Tensors of dense units and parts of shards start on 64 bytes also in bf16: a BLAS may take another path
// elsewhere.
constexpr std::int64_t kAlignElements = 32;

std::int64_t align(std::int64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

}  // namespace

UnitLayout::UnitLayout(const UnitSpec& spec, const Placement& placement)
    : spec_(&spec), world_size_(placement.world_size()) {
  if (spec.kind == UnitKind::kDense) {
    Block block;
    for (const TensorSpec& tensor : spec.tensors) {
      block.elements = align(block.elements);
      block.segments.push_back({&tensor, 0, block.elements, tensor.numel()});
      block.elements += tensor.numel();
    }
    blocks_.push_back(std::move(block));
    return;
  }
  for (int place = 0; place < placement.exchange_size(); ++place) {
    Block block;
    for (const int expert : placement.experts_of(place)) {
      // No padding: nn sees the experts of a block as one stacked tensor.
      for (std::int64_t i = 0; i < spec.per_expert(); ++i) {
        const TensorSpec& tensor = spec.tensors[static_cast<std::size_t>(expert * spec.per_expert() + i)];
        block.segments.push_back({&tensor, 0, block.elements, tensor.numel()});
        block.elements += tensor.numel();
      }
    }
    blocks_.push_back(std::move(block));
  }
}

std::vector<int> UnitLayout::owners(int block) const {
  std::vector<int> result;
  for (int rank = block; rank < world_size_; rank += num_blocks()) result.push_back(rank);
  return result;
}

std::int64_t UnitLayout::total_elements() const { return block_offset(num_blocks()); }

std::int64_t UnitLayout::block_offset(int block) const {
  std::int64_t offset = 0;
  for (int b = 0; b < block; ++b) offset += block_elements(b);
  return offset;
}

UnitLayout::Part UnitLayout::part_of(int rank) const {
  const int num_owners = world_size_ / num_blocks(), index = rank / num_blocks();
  const std::int64_t elements = block_elements(block_of(rank));
  const std::int64_t share = align((elements + num_owners - 1) / num_owners);
  return {std::min(elements, index * share), std::min(elements, (index + 1) * share)};
}

std::vector<Segment> UnitLayout::shard_segments(int rank) const {
  const Part part = part_of(rank);
  std::vector<Segment> result;
  for (const Segment& segment : block_segments(block_of(rank))) {
    const std::int64_t begin = std::max(segment.offset, part.begin);
    const std::int64_t end = std::min(segment.offset + segment.count, part.end);
    if (begin >= end) continue;
    result.push_back(
        {segment.tensor, segment.tensor_begin + begin - segment.offset, begin - part.begin, end - begin});
  }
  return result;
}

}  // namespace moesaic
