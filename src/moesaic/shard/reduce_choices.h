// reduce_choices.h: how each unit's gradients travel between nodes, step by step, and what came of it.
//
// Collective: every rank makes one for its model with equal arguments, calls choose() before a step and
// observe() after it. With a fixed wire choose() changes nothing; else a gate for each unit (cost/
// reduce_gate.h) weighs bf16 against entropy, from facts that observe() gathers, so that all ranks of a
// unit's group choose the same. Both are lossless: no bit of training hangs on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/codec/gradient.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/reduce_gate.h"
#include "moesaic/shard/sharded_model.h"

namespace moesaic {

// What the reduces of one unit did in one step; equal on all ranks of its group.
struct UnitReduces {
  std::string unit;
  codec::GradientWire wire = codec::GradientWire::kBf16;
  ReduceCounts counts;         // runs of one rank; times of the slowest; words and bytes of all ranks
  double exposed_seconds = 0;  // the rank that stood still longest
  std::optional<ReduceDecision> decision;  // of the gate, where one was asked
};

class ReduceChoices {
 public:
  // `wire`: fixed, or none for gates; those ask for `calibration`. `reduces_per_step`: of one unit. Units
  // that do not reduces_across_nodes() have no choice.
  ReduceChoices(ShardedModel& model, std::optional<codec::GradientWire> wire, const Calibration& calibration,
                int reduces_per_step);

  // Of step `step`, ascending. `plain`: whatever the gates would say, they are not asked.
  void choose(std::int64_t step, bool plain = false);
  // What was summed since choose(); of the units that have a choice, in their order. Nothing may be on its
  // way. Sends 72 bytes a codable() unit from every rank to every other.
  std::vector<UnitReduces> observe();

 private:
  struct Unit {
    ShardedUnit* unit;
    std::optional<ReduceGate> gate;
    ReduceCounts counts_before;
    double blocked_before = 0;
  };
  ShardedModel* model_;
  bool plain_ = false;
  std::vector<Unit> units_;
};

// Whether some unit has a choice.
bool reduces_need_calibration(ShardedModel& model);

}  // namespace moesaic
