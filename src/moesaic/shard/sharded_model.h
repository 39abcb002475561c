// sharded_model.h: a model's parameters spread over ranks, gathered stage by stage.
//
// Collective: all ranks make it with equal arguments and walk the stages in the same order:
//
//   prefetch(i+1); units = acquire(i); run stage i; release(i)         forward
//   prefetch(i-1); acquire(i); backward of stage i; reduce(i); release(i)   backward
//   finish_reduce(first micro-step?)                                   after each micro-step
//
// prefetch and reduce run in the background (their own channels) while stages compute. Without
// ParallelOptions::overlap, prefetch does nothing and reduce waits, and exchanged tokens move at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/exchange/route_price.h"
#include "moesaic/nn/stage.h"
#include "moesaic/shard/parallel.h"
#include "moesaic/shard/sharded_unit.h"

namespace moesaic {

class ShardedModel {
 public:
  // Parameters are zero until initialise() or a checkpoint fills the masters and refresh_images() is called.
  ShardedModel(const ModelConfig& config, const ParallelOptions& options, Communicator& world);

  const ModelConfig& config() const { return config_; }
  const Placement& placement() const { return placement_; }
  Communicator& world() const { return *world_; }
  std::span<const StageSpec> stages() const { return stages_; }
  // Experts routes of every layer, for StepContext.
  const std::vector<ExpertRoute>& routes() const { return routes_; }
  // Whether some layer's tokens cross nodes, on any rank, by a route that is chosen for each dispatch.
  bool chooses_routes() const;
  // What those choices go by from now on; equal on all ranks.
  void set_calibration(const Calibration& calibration);

  // Masters from (seed, global names), the same in every layout.
  void initialise(std::uint64_t seed);
  void refresh_images();

  void prefetch(int stage);
  std::vector<UnitTensors> acquire(int stage);
  void release(int stage);
  // Inference walks the same weights again and again. true: what is gathered stays, release() frees nothing;
  // false: frees it. Masters must not change while it is on.
  void keep_gathered(bool keep);
  // Bytes that takes on this rank.
  std::int64_t gathered_bytes() const;
  void reduce(int stage);
  void finish_reduce(bool first);

  // Every unit, in the order of unit_specs().
  std::vector<std::unique_ptr<ShardedUnit>>& units() { return units_; }

  // Seconds this rank stood still for a gather or a reduce since the model was made.
  double blocked_seconds() const;
  // Bytes this rank sent since the model was made, by kind.
  Traffic gather_traffic() const;
  Traffic reduce_traffic() const;
  Traffic exchange_traffic() const;

 private:
  void start_gathers(int stage);

  ModelConfig config_;
  bool overlap_;
  Communicator* world_;
  Placement placement_, gathered_placement_;
  std::vector<UnitSpec> specs_;
  std::vector<StageSpec> stages_;
  // Groups, one channel each. The owners of this rank's expert block; this rank's exchange group; this rank
  // alone.
  Communicator world_gather_, world_reduce_, owners_gather_, owners_reduce_, exchange_, self_;
  std::vector<ExpertRoute> routes_;
  std::optional<RoutePrices> route_prices_;
  CodingSpace world_space_, owners_space_;  // of the two gather groups
  ReduceSpace world_sums_, owners_sums_;    // of the two reduce groups
  std::vector<std::unique_ptr<ShardedUnit>> units_;
  bool keep_gathered_ = false;
  std::vector<int> first_stage_;  // of each unit: its gradient is complete after that stage's backward
};

}  // namespace moesaic
