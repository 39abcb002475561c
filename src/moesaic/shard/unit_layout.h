// unit_layout.h: which elements of a unit each rank holds. No torch, no data: pure arithmetic.
//
// A unit is cut into blocks, one per place: a dense unit is one block owned by all ranks; an expert unit has
// one block per place of the exchange group, holding that place's experts back to back. A block is a flat
// array of elements, cut evenly over its owners (ascending); the last parts may be shorter or empty. So one
// ownership rule serves both ways to bring tokens and weights together:
//   exchange: a rank needs its own block only   -> gathers over the block's owners (often just itself)
//   gather:   a rank needs every block          -> gathers over the world
//
// W ranks, X places per exchange group, G = W/X owners per expert block.
#pragma once

#include <cstdint>
#include <vector>

#include "moesaic/nn/model_config.h"
#include "moesaic/placement/placement.h"

namespace moesaic {

// A stretch of one tensor inside a block or a shard.
struct Segment {
  const TensorSpec* tensor;
  std::int64_t tensor_begin;  // first element, within the tensor
  std::int64_t offset;        // within the block (or the shard)
  std::int64_t count;
};

class UnitLayout {
 public:
  // `spec` and `placement` (ignored for dense units) must outlive this.
  UnitLayout(const UnitSpec& spec, const Placement& placement);

  const UnitSpec& spec() const { return *spec_; }
  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  int block_of(int rank) const { return rank % num_blocks(); }
  // World ranks, ascending.
  std::vector<int> owners(int block) const;
  std::int64_t block_elements(int block) const {
    return blocks_.at(static_cast<std::size_t>(block)).elements;
  }
  std::int64_t total_elements() const;
  // Where `block` starts when all blocks lie back to back (the gathered unit).
  std::int64_t block_offset(int block) const;

  // The part of its block that `rank` holds: [begin, end), maybe empty.
  struct Part {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };
  Part part_of(int rank) const;
  // The tensors of a block, by offset.
  const std::vector<Segment>& block_segments(int block) const {
    return blocks_.at(static_cast<std::size_t>(block)).segments;
  }
  // What rank's shard is made of; offsets are within the shard. Gaps between segments are alignment padding.
  std::vector<Segment> shard_segments(int rank) const;

 private:
  struct Block {
    std::vector<Segment> segments;
    std::int64_t elements = 0;
  };
  const UnitSpec* spec_;
  int world_size_;
  std::vector<Block> blocks_;
};

}  // namespace moesaic
