#include "moesaic/shard/sharded_unit.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "moesaic/comm/executor.h"
#include "moesaic/kernels/convert.h"
#include "moesaic/nn/checks.h"
#include "moesaic/shard/seconds_into.h"

namespace moesaic {
namespace {

// The matrices in the part of a rank, and the padding between them.
GradientPieces pieces_of(const UnitLayout& layout, int rank) {
  GradientPieces pieces;
  std::int64_t at = 0;
  const auto pad_to = [&](std::int64_t offset) {
    if (offset > at) pieces.push_back({.words = static_cast<std::uint64_t>(offset - at)});
    at = offset;
  };
  for (const Segment& segment : layout.shard_segments(rank)) {
    pad_to(segment.offset);
    const std::int64_t cols = segment.tensor->shape.back();
    pieces.push_back({.words = static_cast<std::uint64_t>(segment.count),
                      .rows = static_cast<std::uint32_t>(segment.tensor->numel() / cols),
                      .cols = static_cast<std::uint32_t>(cols),
                      .offset = static_cast<std::uint64_t>(segment.tensor_begin)});
    at += segment.count;
  }
  pad_to(layout.part_of(rank).size());
  return pieces;
}

}  // namespace

ShardedUnit::ShardedUnit(UnitLayout layout, int rank, bool whole_unit, DType dtype,
                         Communicator& gather_group, Communicator& reduce_group, std::uint64_t number,
                         CodingSpace& coding_space, ReduceSpace& reduce_space)
    : layout_(std::move(layout)),
      rank_(rank),
      whole_unit_(whole_unit),
      resident_(gather_group.size() == 1),
      dtype_(layout_.spec().keep_fp32 ? DType::kF32 : dtype),
      gather_group_(&gather_group),
      reduce_group_(&reduce_group),
      shard_elements_(layout_.part_of(rank).size()),
      whole_elements_(whole_unit ? layout_.total_elements() : layout_.block_elements(layout_.block_of(rank))),
      number_(number),
      coding_space_(&coding_space),
      reduce_space_(&reduce_space) {
  for (int member = 0; member < gather_group.size(); ++member) {
    const int world_rank = gather_group.world_rank(member);
    const UnitLayout::Part part = layout_.part_of(world_rank);
    const std::int64_t block = whole_unit ? layout_.block_offset(layout_.block_of(world_rank)) : 0;
    part_elements_.push_back(part.size());
    part_offsets_.push_back(block + part.begin);
    part_bytes_.push_back(part.size() * size_of(dtype_));
    part_offset_bytes_.push_back(part_offsets_.back() * size_of(dtype_));
  }
  master_ = Buffer(shard_elements_ * size_of(DType::kF32));
  // Alignment padding between tensors is never trained, but it is gathered, saved and summed.
  std::ranges::fill(master(), 0.0f);
  if (dtype_ != DType::kF32) image_ = Buffer(shard_elements_ * size_of(dtype_));
  make_leaves();
  make_coded_reduce();
}

const std::byte* ShardedUnit::image() const { return dtype_ == DType::kF32 ? master_.data() : image_.data(); }

void ShardedUnit::make_leaves() {
  const std::int64_t bytes = whole_elements_ * size_of(dtype_);
  storage_ = at::Storage(at::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                         at::DataPtr(nullptr, at::kCPU), nullptr, false);
  const auto leaf = [&](std::int64_t offset, const std::vector<std::int64_t>& shape) {
    at::Tensor tensor = at::empty({0}, at::TensorOptions(scalar_type(dtype_)));
    tensor.set_(storage_, offset, shape);
    tensor.set_requires_grad(true);
    leaves_.push_back(std::move(tensor));
  };
  if (layout_.spec().kind == UnitKind::kDense) {
    for (const Segment& segment : layout_.block_segments(0)) leaf(segment.offset, segment.tensor->shape);
  } else {
    // Experts stacked; an expert's own tensors (gate, up) share their columns and follow each other along the
    // rows.
    const UnitSpec& spec = layout_.spec();
    const std::int64_t experts =
        whole_unit_ ? spec.num_experts
                    : std::ssize(layout_.block_segments(layout_.block_of(rank_))) / spec.per_expert();
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < spec.per_expert(); ++i)
      rows += spec.tensors[static_cast<std::size_t>(i)].shape[0];
    leaf(0, {experts, rows, spec.tensors.front().shape[1]});
  }
  if (resident_) {
    point_leaves_at(const_cast<std::byte*>(image()), bytes);
    gathered_ = true;
  }
}

void ShardedUnit::point_leaves_at(void* data, std::int64_t bytes) {
  storage_.set_data_ptr_noswap(at::DataPtr(data, at::kCPU));
  storage_.set_nbytes(static_cast<std::size_t>(bytes));
}

bool ShardedUnit::codable_in(ReferenceMode mode) const {
  return codable() && (mode == ReferenceMode::kRank || gather_group_->topology().num_nodes() > 1);
}

void ShardedUnit::set_codec(codec::Method method, ReferenceMode mode) {
  if (!codable_in(mode) && codec::lossless(method)) method = codec::Method::kRaw;
  if (!codable() || codec() == method) return;
  counts_ = gather_counts();
  coded_.reset();
  if (method == codec::Method::kRaw) return;
  coded_ = std::make_unique<CodedGather>(*gather_group_, part_elements_, part_offsets_, method, mode, number_,
                                         layout_.spec().name, *coding_space_);
}

GatherCounts ShardedUnit::gather_counts() const {
  GatherCounts counts = counts_;
  if (coded_ != nullptr) counts += coded_->counts();
  return counts;
}

bool ShardedUnit::reduces_across_nodes() const {
  return codable() && reduce_group_->topology().num_nodes() > 1;
}

void ShardedUnit::set_gradient_wire(codec::GradientWire wire) {
  if (!reduces_across_nodes() || wire == wire_) return;
  wire_ = wire;
  reduce_counts_ = reduce_counts();
  make_coded_reduce();
}

void ShardedUnit::make_coded_reduce() {
  coded_reduce_.reset();
  if (!reduces_across_nodes()) return;
  // Dense gradients have no zeros to leave out.
  if (wire_ == codec::GradientWire::kBf16 && layout_.spec().kind == UnitKind::kDense) return;
  std::vector<GradientPieces> pieces;
  for (int member = 0; member < reduce_group_->size(); ++member) {
    pieces.push_back(pieces_of(layout_, reduce_group_->world_rank(member)));
  }
  coded_reduce_ =
      std::make_unique<CodedReduce>(*reduce_group_, part_elements_, part_offsets_, std::move(pieces), wire_,
                                    number_, layout_.spec().name, *reduce_space_);
}

ReduceCounts ShardedUnit::reduce_counts() const {
  ReduceCounts counts = reduce_counts_;
  if (coded_reduce_ != nullptr) counts += coded_reduce_->counts();
  return counts;
}

void ShardedUnit::refresh_image() {
  ++version_;
  if (dtype_ == DType::kF32) return;
  kernels::convert(DType::kF32, master_.data(), dtype_, image_.data(), shard_elements_);
}

void ShardedUnit::start_gather() {
  if (gathered_) return;
  gathered_ = true;
  whole_ = Buffer(whole_elements_ * size_of(dtype_));
  point_leaves_at(whole_.data(), whole_.bytes());
  gather_window_.open();
  gather_ = start_job(
      *gather_group_, [this] { gather(); }, layout_.spec().name);
}

void ShardedUnit::gather() {
  if (coded_ != nullptr) {
    coded_->run({reinterpret_cast<const std::uint16_t*>(image()), static_cast<std::size_t>(shard_elements_)},
                {whole_.as<std::uint16_t>(), static_cast<std::size_t>(whole_elements_)}, version_);
  } else {
    ++counts_.runs;
    const SecondsInto timer(counts_.seconds);
    all_gather_v(*gather_group_, {image(), static_cast<std::size_t>(shard_elements_ * size_of(dtype_))},
                 part_bytes_, whole_.span(), part_offset_bytes_);
  }
}

void ShardedUnit::wait_gather() {
  const Span span(gather_group_->tracer(),
                  {.phase = Phase::kGather, .name = layout_.spec().name, .waiting = true});
  gather_window_.close();
  const SecondsInto timer(gather_blocked_seconds_);
  gather_.wait();
}

void ShardedUnit::release() {
  if (resident_ || !gathered_) return;
  wait_gather();
  point_leaves_at(nullptr, 0);
  whole_ = Buffer();
  gathered_ = false;
}

void ShardedUnit::start_reduce() {
  const at::NoGradGuard no_grad;
  if (layout_.spec().kind == UnitKind::kExpert && leaves_[0].grad().defined()) {
    flat_gradient_ = leaves_[0].grad().contiguous();
  } else {
    flat_gradient_ = at::zeros({whole_elements_}, at::TensorOptions(scalar_type(dtype_)));
    if (layout_.spec().kind == UnitKind::kDense) {
      for (std::size_t i = 0; i < leaves_.size(); ++i) {
        if (!leaves_[i].grad().defined()) continue;
        flat_gradient_.narrow(0, layout_.block_segments(0)[i].offset, leaves_[i].numel())
            .copy_(leaves_[i].grad().flatten());
      }
    }
  }
  for (at::Tensor& leaf : leaves_) leaf.mutable_grad().reset();
  if (reduced_.bytes() == 0) {
    gradient_ = Buffer(shard_elements_ * size_of(DType::kF32));
    reduced_ = Buffer(gradient_.bytes());
  }
  reducing_ = true;
  reduce_window_.open();
  reduce_ = start_job(
      *reduce_group_, [this] { reduce(); }, layout_.spec().name);
}

void ShardedUnit::reduce() {
  const void* whole = flat_gradient_.const_data_ptr();
  const auto elements = static_cast<std::size_t>(whole_elements_);
  const std::span<float> sum{reduced_.as<float>(), static_cast<std::size_t>(shard_elements_)};
  if (coded_reduce_ != nullptr) {
    coded_reduce_->run({static_cast<const std::uint16_t*>(whole), elements}, sum);
  } else {
    ++reduce_counts_.runs;
    for (const int owner : reduce_group_->topology().stands_for(reduce_group_->rank())) {
      const std::int64_t words = part_elements_[static_cast<std::size_t>(owner)];
      reduce_counts_.words += words;
      reduce_counts_.coded_bytes += words * size_of(dtype_);
    }
    const SecondsInto timer(reduce_counts_.seconds);
    const std::size_t bytes = elements * static_cast<std::size_t>(size_of(dtype_));
    reduce_scatter_v(*reduce_group_, {static_cast<const std::byte*>(whole), bytes}, dtype_, part_elements_,
                     sum, part_offsets_);
  }
}

void ShardedUnit::settle_reduce() {
  const Span span(reduce_group_->tracer(),
                  {.phase = Phase::kReduce, .name = layout_.spec().name, .waiting = true});
  reduce_window_.close();
  const SecondsInto timer(reduce_blocked_seconds_);
  reduce_.wait();
  flat_gradient_.reset();
}

void ShardedUnit::finish_reduce(bool first) {
  if (!reducing_) return;
  settle_reduce();
  reducing_ = false;
  if (first) {
    std::swap(gradient_, reduced_);
    return;
  }
  float* sum = gradient_.as<float>();
  const float* part = reduced_.as<float>();
  for (std::int64_t i = 0; i < shard_elements_; ++i) sum[i] += part[i];
}

}  // namespace moesaic
