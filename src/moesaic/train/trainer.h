// trainer.h: optimizer steps over a sharded model, evaluation, and the state a checkpoint holds.
//
// Collective: every rank makes a Trainer with the same configuration and calls the same members in the same
// order. Never prints: the caller shows reports.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/cost/step_trial.h"
#include "moesaic/nn/gate_states.h"
#include "moesaic/shard/gather_choices.h"
#include "moesaic/shard/reduce_choices.h"
#include "moesaic/shard/sharded_model.h"
#include "moesaic/train/config.h"
#include "moesaic/train/data.h"
#include "moesaic/train/evaluate.h"
#include "moesaic/train/optimizer.h"
#include "moesaic/train/phase_clock.h"

namespace moesaic {

// Bytes handed to the transport, by all ranks together.
struct SentBytes {
  std::int64_t total = 0;
  std::int64_t inter_node = 0;  // those of them that left their node
};

// How one rank spent a step.
struct RankTimes {
  double seconds = 0;
  PhaseTimes phases;
};

// What one optimizer step did; global values, equal on all ranks unless said.
struct StepReport {
  std::int64_t step = 0;  // from 1: this many steps have been made
  double loss = 0;        // mean cross-entropy, nats per target token
  double gradient_norm = 0;
  double learning_rate = 0;
  bool skipped = false;                                // non-finite loss or gradient: parameters untouched
  double balance_loss = 0, z_loss = 0, gate_loss = 0;  // unweighted, means over layers and micro-steps
  std::int64_t dropped_non_finite = 0;  // tokens left without experts by non-finite logits, over the layers
  std::int64_t dropped = 0;             // choices lost to capacity
  std::int64_t dropped_random = 0;      // choices left out at random (gshard)
  std::vector<std::vector<std::int64_t>> chosen;  // [MoE layer][E] choices that asked for a slot
  double seconds = 0;                             // this rank
  double tokens_per_s = 0;                        // of the global batch, by this rank's clock
  double blocked_seconds = 0;                     // this rank stood still for gathers and reduces
  SentBytes gather, reduce, exchange, control;
  // [MoE layer] of the last micro-step, in this rank's exchange group; none where experts are gathered.
  std::vector<std::optional<Route>> routes;
  // Of units that can travel coded; equal on all ranks of a unit's group.
  std::vector<UnitGathers> gathers;
  std::vector<UnitReduces> reduces;
  // Where this step ended a trial of steps whose gathers and reduces are all plain.
  std::optional<StepTrialResult> trial;
  std::vector<RankTimes> by_rank;  // on rank 0; empty elsewhere
  std::int64_t inter_node_bytes() const {
    return gather.inter_node + reduce.inter_node + exchange.inter_node + control.inter_node;
  }
};

class Trainer {
 public:
  Trainer(const Config& config, Communicator& world);

  const Config& config() const { return config_; }
  ShardedModel& model() { return model_; }
  Optimizer& optimizer() { return optimizer_; }
  // The ranks `world` had, on a channel of its own (7); tells this trainer's clock and the tracer of `world`.
  Communicator& world() { return world_; }

  // Where a run stands, beside its tensors.
  struct Position {
    std::int64_t steps_done = 0;       // skipped ones included
    std::int64_t next_sample = 0;      // of the data order
    std::int64_t optimizer_steps = 0;  // skipped ones excluded: the t of AdamW
    std::int64_t skipped_in_a_row = 0;
  };
  Position position() const;
  void restore(const Position& position);
  std::int64_t steps_done() const { return position_.steps_done; }

  // Where the gates stand, as evaluation and checkpoints take it.
  GateStates& gates() { return gates_; }

  // Throws NonFinite after train.max_skipped_steps skipped in a row.
  StepReport step();

  // See evaluate.h.
  std::vector<HeldOutLoss> evaluate(std::int64_t max_tokens);

 private:
  // All micro-steps; returns this rank's share of the loss, adds what the layers report.
  double forward_and_backward(std::int64_t step, StepReport& report);
  void step_on(std::int64_t step, StepReport& report);
  void sum_over_ranks(StepReport& report, double loss, std::vector<std::int64_t> sent);
  void tell_trial(StepReport& report);

  Config config_;
  PhaseClock clock_;
  Communicator world_;
  Dataset dataset_;
  Sampler sampler_;
  ShardedModel model_;
  Optimizer optimizer_;
  Calibration calibration_;  // what the choices go by
  GatherChoices gather_choices_;
  ReduceChoices reduce_choices_;
  std::optional<StepTrial> trial_;  // where gates choose
  GateStates gates_;
  Position position_;
};

// The part of a Config that ShardedModel needs.
ParallelOptions parallel_options(const Config& config);

// fp32 values the optimizer keeps per parameter: 2 for AdamW, 1 for SGD with momentum, else 0.
std::int64_t moments_per_element(const Config& config);

}  // namespace moesaic
