// gather_choices.h: how each unit's gathers travel, step by step, and what came of it.
//
// Collective: every rank makes one for its model with equal arguments, calls choose() before a step and
// observe() after it. With a fixed method choose() changes nothing; else a gate for each unit (cost/
// gather_gate.h) weighs raw against momentum, from facts that observe() gathers, so that all ranks of a
// unit's group choose the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/codec/method.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/gather_gate.h"
#include "moesaic/shard/sharded_model.h"

namespace moesaic {

// What the gathers of one unit did in one step; equal on all ranks of its group.
struct UnitGathers {
  std::string unit;
  codec::Method method = codec::Method::kRaw;
  GatherCounts counts;  // runs and unsent of one rank; times of the slowest; the others of all ranks
  // What a rank that saw it says of the last of counts.resyncs, which are those of all ranks of the world,
  // beyond the group too, so that none goes unseen. Empty where there was none.
  std::string resync_reason = {};
  double exposed_seconds = 0;              // the rank that stood still longest
  std::int64_t words = 0;                  // of the whole unit
  std::int64_t reference_bytes = 0;        // on the rank that keeps most
  std::int64_t raw_bytes = 0;              // that raw gathers would have moved between nodes
  std::optional<GatherDecision> decision;  // of the gate, where one was asked
};

class GatherChoices {
 public:
  // `method`: fixed, or none for gates; those ask for `calibration`. `gathers_per_step`: of one unit and
  // version. Units that are not codable_in(mode) have no choice.
  GatherChoices(ShardedModel& model, std::optional<codec::Method> method, ReferenceMode mode,
                const Calibration& calibration, int gathers_per_step);

  // Of step `step`, ascending. `plain`: whatever the gates would say, they are not asked.
  void choose(std::int64_t step, bool plain = false);
  // What was gathered since choose(); of codable units, in their order. Nothing may be on its way. Sends 96
  // bytes a unit from every rank to every other, and 256 more after a step with a resync.
  std::vector<UnitGathers> observe();

 private:
  struct Unit {
    ShardedUnit* unit;
    std::optional<GatherGate> gate;
    GatherCounts counts_before;
    double blocked_before = 0;
  };
  // Collective where there was one: adds the reasons.
  void tell_resyncs(std::vector<UnitGathers>& gathers);

  ShardedModel* model_;
  ReferenceMode mode_;
  std::int64_t step_ = 0;
  bool plain_ = false;
  std::vector<Unit> units_;
};

// Whether some unit has a choice.
bool gathers_need_calibration(ShardedModel& model, ReferenceMode mode);

}  // namespace moesaic
