// sharded_unit.h: one unit's parameters on one rank: the shard it holds, and the whole it computes with.
//
// The shard (fp32 masters, and their image in the compute dtype) is always there. The whole is gathered
// before use and freed after it. Leaves are torch tensors over a storage whose memory comes and goes, so a
// graph made in the forward pass reads the re-gathered weights in the backward pass. A unit with a single
// owner of all that this rank needs is resident: its leaves are the image itself, nothing is gathered or
// freed.
//
// A gather travels raw, or coded against what the receivers hold (coded_gather.h): the same bits, but for the
// lossy method.
//
// Collective: start_gather and start_reduce, by every rank of the unit's gather group, in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/buffer.h"
#include "moesaic/shard/coded_gather.h"
#include "moesaic/shard/coded_reduce.h"
#include "moesaic/shard/unit_layout.h"
#include "moesaic/shard/wait_window.h"

namespace moesaic {

class ShardedUnit {
 public:
  // `whole_unit`: gather every block (over the world) rather than this rank's own (over its block's owners).
  // `gather_group` and `reduce_group` hold the same ranks, this one among them, in world order. `number`: the
  // unit's own, equal on all ranks; `coding_space` and `reduce_space`: of the two groups.
  ShardedUnit(UnitLayout layout, int rank, bool whole_unit, DType dtype, Communicator& gather_group,
              Communicator& reduce_group, std::uint64_t number, CodingSpace& coding_space,
              ReduceSpace& reduce_space);

  // How gathers travel from now on (raw at first). Collective in effect: every rank of the group calls it at
  // the same place, with equal arguments, while nothing is gathered; what was held is forgotten, unless
  // nothing changes. Without effect on units that are not codable(). Stays raw for a lossless method where
  // that would never be sent.
  void set_codec(codec::Method method, ReferenceMode mode);
  codec::Method codec() const { return coded_ != nullptr ? coded_->method() : codec::Method::kRaw; }
  // Gathered, and in bf16.
  bool codable() const { return !resident_ && dtype_ == DType::kBF16; }
  // And there is somebody to whom a lossless code would be sent: not ReferenceMode::kNode on one node.
  bool codable_in(ReferenceMode mode) const;
  // Null while gathers travel raw.
  CodedGather* coded() { return coded_.get(); }
  // Since the unit was made, whatever the method. Not while a gather is on its way.
  GatherCounts gather_counts() const;

  Communicator& gather_group() const { return *gather_group_; }
  Communicator& reduce_group() const { return *reduce_group_; }
  const std::vector<std::int64_t>& part_elements() const { return part_elements_; }  // by rank of the group
  const UnitLayout& layout() const { return layout_; }
  DType dtype() const { return dtype_; }
  bool resident() const { return resident_; }
  std::int64_t shard_elements() const { return shard_elements_; }
  // What a gather brings into memory beside the shard.
  std::int64_t gathered_bytes() const { return resident_ ? 0 : whole_elements_ * size_of(dtype_); }

  // fp32 masters of this rank's shard, and the gradient summed into it by the last reduce (empty before the
  // first: inference has none).
  std::span<float> master() { return {master_.as<float>(), static_cast<std::size_t>(shard_elements_)}; }
  std::span<float> gradient() {
    return {gradient_.as<float>(), static_cast<std::size_t>(gradient_.bytes()) / sizeof(float)};
  }

  // After masters changed: renews the image that gathers send. Invalid while the whole is gathered.
  void refresh_image();

  void start_gather();  // no-op while gathered or on the way
  void wait_gather();   // the leaves are readable after this; counts the time it blocked
  void release();       // frees the gathered memory; leaves stay, unreadable

  // One tensor per TensorSpec (dense) or one stack of experts (expert unit); leaves that collect gradients.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }

  // Whether the way gradients travel is a choice: they are bf16 and cross nodes.
  bool reduces_across_nodes() const;
  // How gradients travel between nodes from now on (bf16 at first). Collective in effect, like set_codec();
  // not while a reduce is on its way. Without effect unless reduces_across_nodes().
  void set_gradient_wire(codec::GradientWire wire);
  codec::GradientWire gradient_wire() const { return wire_; }
  // Since the unit was made, whatever the wire. Not while a reduce is on its way.
  ReduceCounts reduce_counts() const;

  // Takes the gradients the leaves collected (none = zeros) and sums them into the owners' shards, in the
  // background.
  void start_reduce();
  // Waits for the reduce and frees its input.
  void settle_reduce();
  // Settles; adds what arrived to gradient() (or stores it, for the first micro-step of an optimizer step).
  void finish_reduce(bool first);

  // This rank stood still for a gather; for a reduce; for either.
  double gather_blocked_seconds() const { return gather_blocked_seconds_; }
  double reduce_blocked_seconds() const { return reduce_blocked_seconds_; }
  double blocked_seconds() const { return gather_blocked_seconds_ + reduce_blocked_seconds_; }
  // What gathers and reduces could take before it stood still for them.
  WaitWindow& gather_window() { return gather_window_; }
  WaitWindow& reduce_window() { return reduce_window_; }

 private:
  void make_leaves();
  void make_coded_reduce();
  void point_leaves_at(void* data, std::int64_t bytes);
  // On the background threads of the groups.
  void gather();
  void reduce();
  const std::byte* image() const;

  UnitLayout layout_;
  int rank_;
  bool whole_unit_, resident_;
  DType dtype_;
  Communicator* gather_group_;
  Communicator* reduce_group_;
  std::int64_t shard_elements_, whole_elements_;
  std::vector<std::int64_t> part_elements_, part_bytes_, part_offsets_,
      part_offset_bytes_;  // by rank of the group

  Buffer master_, image_, gradient_, reduced_;
  std::uint64_t version_ = 1;  // of the image
  std::uint64_t number_;
  CodingSpace* coding_space_;
  std::unique_ptr<CodedGather> coded_;
  GatherCounts counts_;  // of all gathers but those of coded_
  codec::GradientWire wire_ = codec::GradientWire::kBf16;
  ReduceSpace* reduce_space_;
  std::unique_ptr<CodedReduce> coded_reduce_;
  ReduceCounts reduce_counts_;  // of all reduces but those of coded_reduce_
  // What is borrowed comes before what borrows: the destructors of Pending wait for the background.
  Buffer whole_;
  at::Tensor flat_gradient_;  // the reduce's input
  Pending gather_, reduce_;
  bool gathered_ = false, reducing_ = false;
  at::Storage storage_;
  std::vector<at::Tensor> leaves_;
  double gather_blocked_seconds_ = 0, reduce_blocked_seconds_ = 0;
  WaitWindow gather_window_, reduce_window_;
};

}  // namespace moesaic
