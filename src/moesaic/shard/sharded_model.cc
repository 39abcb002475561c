#include "moesaic/shard/sharded_model.h"

#include <algorithm>
#include <numeric>

#include "moesaic/core/error.h"
#include "moesaic/nn/params.h"

namespace moesaic {
namespace {

// Ranks at the same place of every exchange group.
std::vector<int> co_owners(const Placement& placement, int rank) {
  std::vector<int> ranks;
  for (int r = rank % placement.exchange_size(); r < placement.world_size(); r += placement.exchange_size()) {
    ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> exchange_group(const Placement& placement, int rank) {
  std::vector<int> ranks(static_cast<std::size_t>(placement.exchange_size()));
  std::iota(ranks.begin(), ranks.end(), placement.group_of(rank) * placement.exchange_size());
  return ranks;
}

Traffic add(Traffic a, const Traffic& b) {
  a.inter_node_bytes += b.inter_node_bytes;
  a.intra_node_bytes += b.intra_node_bytes;
  a.messages += b.messages;
  return a;
}

}  // namespace

ShardedModel::ShardedModel(const ModelConfig& config, const ParallelOptions& options, Communicator& world)
    : config_(config),
      overlap_(options.overlap),
      world_(&world),
      placement_(Placement::contiguous(static_cast<int>(config.moe.gate.num_experts), world.size(),
                                       options.exchange_size)),
      gathered_placement_(placement_.gathered()),
      specs_(unit_specs(config_)),
      stages_(stage_specs(config_)),
      world_gather_(world.split_all(1, {.phase = Phase::kGather, .lane = "gather"})),
      world_reduce_(world.split_all(2, {.phase = Phase::kReduce, .lane = "reduce"})),
      owners_gather_(world.split(co_owners(placement_, world.rank()), 3,
                                 {.phase = Phase::kGather, .lane = "gather (owners)"})),
      owners_reduce_(world.split(co_owners(placement_, world.rank()), 4,
                                 {.phase = Phase::kReduce, .lane = "reduce (owners)"})),
      exchange_(world.split(exchange_group(placement_, world.rank()), 5,
                            {.phase = Phase::kExchange, .lane = "exchange"})),
      self_(world.split(std::vector<int>{world.rank()}, 6)) {
  require(static_cast<std::int64_t>(options.experts.size()) == config_.num_layers,
          "parallel.experts has {} entries, expected one for each of the {} layers", options.experts.size(),
          config_.num_layers);
  const auto exchanged = [&](int layer) {
    return options.experts[static_cast<std::size_t>(layer)] == ExpertsMode::kExchange;
  };
  const DispatchOptions dispatch{
      .route = options.route, .chunks = overlap_ ? options.exchange_chunks : std::optional<std::int64_t>(1)};
  // Without overlap, too: that changes no bits.
  const bool only_panels = options.exchange_chunks.value_or(1) > 1;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    routes_.push_back(exchanged(layer) ? ExpertRoute{&exchange_, &placement_, dispatch, overlap_,
                                                     options.fp32_sums, only_panels}
                                       : ExpertRoute{&self_, &gathered_placement_, {}});
  }
  for (const UnitSpec& spec : specs_) {
    const bool own_block_only = spec.kind == UnitKind::kExpert && exchanged(spec.layer);
    units_.push_back(std::make_unique<ShardedUnit>(
        UnitLayout(spec, placement_), world.rank(), !own_block_only, options.dtype,
        own_block_only ? owners_gather_ : world_gather_, own_block_only ? owners_reduce_ : world_reduce_,
        units_.size(), own_block_only ? owners_space_ : world_space_,
        own_block_only ? owners_sums_ : world_sums_));
    if (options.gradients) units_.back()->set_gradient_wire(*options.gradients);
    if (options.codec) units_.back()->set_codec(*options.codec, options.reference);
  }
  first_stage_.assign(units_.size(), static_cast<int>(stages_.size()));
  for (int stage = static_cast<int>(stages_.size()) - 1; stage >= 0; --stage) {
    for (const int unit : stages_[static_cast<std::size_t>(stage)].units) {
      first_stage_[static_cast<std::size_t>(unit)] = stage;
    }
  }
}

bool ShardedModel::chooses_routes() const {
  const bool asked = std::ranges::any_of(
      routes_, [&](const ExpertRoute& route) { return route.group == &exchange_ && !route.dispatch.route; });
  if (!asked) return false;
  // A group is a range of ranks.
  for (int rank = 1; rank < world_->size(); ++rank) {
    if (placement_.group_of(rank) == placement_.group_of(rank - 1) &&
        world_->topology().node_of(rank) != world_->topology().node_of(rank - 1)) {
      return true;
    }
  }
  return false;
}

void ShardedModel::set_calibration(const Calibration& calibration) {
  if (exchange_.topology().num_nodes() == 1) return;
  route_prices_.emplace(exchange_.topology(), calibration);
  for (ExpertRoute& route : routes_) {
    if (route.group == &exchange_) route.dispatch.prices = &*route_prices_;
  }
}

void ShardedModel::initialise(std::uint64_t seed) {
  for (auto& unit : units_) {
    for (const Segment& segment : unit->layout().shard_segments(world_->rank())) {
      moesaic::initialise(*segment.tensor, seed, segment.tensor_begin, segment.tensor_begin + segment.count,
                          unit->master().data() + segment.offset);
    }
  }
  refresh_images();
}

void ShardedModel::refresh_images() {
  const Span span(world_->tracer(), {.phase = Phase::kOptimizer, .name = "refresh images"});
  for (auto& unit : units_) unit->refresh_image();
}

void ShardedModel::prefetch(int stage) {
  if (overlap_ && stage >= 0 && stage < static_cast<int>(stages_.size())) start_gathers(stage);
}

void ShardedModel::start_gathers(int stage) {
  for (const int unit : stages_.at(static_cast<std::size_t>(stage)).units) {
    units_[static_cast<std::size_t>(unit)]->start_gather();
  }
}

std::vector<UnitTensors> ShardedModel::acquire(int stage) {
  start_gathers(stage);
  std::vector<UnitTensors> tensors;
  for (const int index : stages_.at(static_cast<std::size_t>(stage)).units) {
    ShardedUnit& unit = *units_[static_cast<std::size_t>(index)];
    unit.wait_gather();
    tensors.push_back(unit.leaves());
  }
  return tensors;
}

void ShardedModel::release(int stage) {
  if (keep_gathered_) return;
  for (const int unit : stages_.at(static_cast<std::size_t>(stage)).units) {
    units_[static_cast<std::size_t>(unit)]->release();
  }
}

void ShardedModel::keep_gathered(bool keep) {
  keep_gathered_ = keep;
  if (keep) return;
  for (auto& unit : units_) unit->release();
}

std::int64_t ShardedModel::gathered_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& unit : units_) bytes += unit->gathered_bytes();
  return bytes;
}

void ShardedModel::reduce(int stage) {
  for (const int unit : stages_.at(static_cast<std::size_t>(stage)).units) {
    if (first_stage_[static_cast<std::size_t>(unit)] != stage)
      continue;  // tied: the embedding's backward follows
    units_[static_cast<std::size_t>(unit)]->start_reduce();
    if (!overlap_) units_[static_cast<std::size_t>(unit)]->settle_reduce();
  }
  // Two stages' gradients are under way at most: those of the stage before had a stage's time to arrive.
  if (stage + 1 >= static_cast<int>(stages_.size())) return;
  for (const int unit : stages_[static_cast<std::size_t>(stage) + 1].units) {
    if (first_stage_[static_cast<std::size_t>(unit)] == stage + 1) {
      units_[static_cast<std::size_t>(unit)]->settle_reduce();
    }
  }
}

void ShardedModel::finish_reduce(bool first) {
  for (auto& unit : units_) unit->finish_reduce(first);
}

double ShardedModel::blocked_seconds() const {
  double total = 0;
  for (const auto& unit : units_) total += unit->blocked_seconds();
  return total;
}

Traffic ShardedModel::gather_traffic() const {
  return add(world_gather_.traffic(), owners_gather_.traffic());
}
Traffic ShardedModel::reduce_traffic() const {
  return add(world_reduce_.traffic(), owners_reduce_.traffic());
}
Traffic ShardedModel::exchange_traffic() const { return exchange_.traffic(); }

}  // namespace moesaic
