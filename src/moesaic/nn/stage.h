// stage.h: the model as a list of stages, each run forward and backward on its own.
//
// A stage = the embedding, one layer, or the head. The trainer walks the list, gathering a stage's parameters
// before it and freeing them after it; autograd never spans two stages. That makes the order of every
// collective explicit (equal on all ranks), and recomputation and prefetch a matter of the walk.
//
// Collective where a layer has experts: every rank calls run_stage for the same stages in the same order,
// also with B = 0 sequences (then all tensors have zero rows and parameter gradients may stay undefined: they
// count as zero).
//
//   B sequences of S positions on this rank, D width, V vocabulary, T = B*S tokens, E experts, K choices
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/exchange/route.h"
#include "moesaic/nn/model_config.h"
#include "moesaic/nn/stage_spec.h"
#include "moesaic/placement/placement.h"

namespace moesaic {

// Parameters of one unit as leaves. Dense unit: one tensor per TensorSpec. Expert unit: a single tensor,
// experts stacked in the order of the rank's experts_of(): "gate_up" [E_local, 2F, D] (gate rows first;
// [E_local, F, D] for ReLU) and "down" [E_local, D, F].
using UnitTensors = std::vector<at::Tensor>;

// How one layer's experts are reached. When experts are gathered, `group` has size 1 and `placement` gives
// that one rank every expert: gather is exchange with oneself.
struct ExpertRoute {
  Communicator* group = nullptr;
  const Placement* placement = nullptr;
  DispatchOptions dispatch = {};  // the path of exchanged tokens
  bool overlap = true;            // they move while this thread computes; the same bits
  // Rows' sums, and those of their gradients, travel home in fp32, not in x's dtype: other bits.
  bool fp32_sums = false;
  // Experts multiply by panels on every CPU (expert_products.h), so that rows can come in chunks.
  bool only_panels = false;
};

// What one MoE layer did in one micro-step; global unless said.
struct LayerStats {
  std::vector<std::int64_t> chosen;  // [E] choices that asked for a slot, over all ranks
  std::int64_t dropped = 0;          // this rank's choices lost to capacity
  std::int64_t dropped_random = 0;   // this rank's choices left out at random
  std::int64_t non_finite = 0;       // this rank's tokens with non-finite logits
  double balance_loss = 0.0;   // unweighted, of this layer alone; 1.0 at perfect balance ("hf": about k)
  double z_loss = 0.0;         // unweighted; this rank's share of the mean
  double gate_loss = 0.0;      // unweighted, of gates that have a further one; this rank's share of the mean
  std::optional<Route> route;  // of the exchange group that this rank is in; none where experts are gathered
};

// Balance loss in Hugging Face's convention multiplies sums over all layers, so the layers of a micro-step
// share them. [num_layers][E], empty for layers not run: choices of all ranks, and this rank's sums of
// probabilities.
struct CoupledBalance {
  std::vector<std::vector<double>> chosen, probability;
};

class KvCache;         // kv_cache.h
struct RoutingRecord;  // router.cc

// Facts about the micro-step that all ranks agree on, and this rank's place in it.
struct StepContext {
  bool training = true;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_token = 0;         // global id of this rank's first token within the optimizer step
  std::int64_t step_tokens = 0;         // routed (non-padding) tokens of all ranks over the optimizer step
  std::int64_t step_targets = 0;        // target tokens of all ranks over the optimizer step
  std::vector<std::int64_t> token_ids;  // [T], left by the embedding for gates that read them
  std::vector<std::uint8_t> mask;   // [T]; false = padding (on the right of its sequence). Empty = all real
  Communicator* world = nullptr;    // counts are gathered over it
  std::vector<ExpertRoute> routes;  // [num_layers]
  std::vector<std::vector<float>> gate_state;  // [num_layers] see gate_states.h; empty where unused
  std::vector<LayerStats> stats;               // [num_layers], filled by run_stage
  std::shared_ptr<CoupledBalance>
      coupled;  // made by run_stage for balance_convention "hf"; one per micro-step

  // Inference: capacity is left out, since who else is in the pass must not matter; and with a cache the
  // input is the new tokens of its runs, B = 1.
  bool dropless = false;
  KvCache* cache = nullptr;

  // Recomputation: a pass with keep_routing leaves here what each layer's router decided; a layer whose entry
  // is set follows it: no messages, no second decision, no stats. [num_layers] or empty.
  bool keep_routing = false;
  std::vector<std::shared_ptr<const RoutingRecord>> kept_routing;
};

struct StageOutput {
  at::Tensor
      value;  // layer, embed: hidden [B,S,D]; head: logits [B,S,V], or with targets the loss (see below)
  at::Tensor auxiliary;  // fp32 scalar, this rank's weighted balance and z-losses; undefined where there are
                         // none, and outside training
};

// input: token ids [B,S] int64 (embed) or hidden states [B,S,D].
StageOutput run_stage(const ModelConfig& config, const StageSpec& stage, std::span<const UnitTensors> units,
                      const at::Tensor& input, StepContext& context);

// The head with targets [B,S] int64 (-1 = no target): (sum of cross-entropy over this rank's targets) /
// step_targets, an fp32 scalar in nats. Summed over ranks and micro-steps it is the mean loss of the step.
StageOutput run_head_with_loss(const ModelConfig& config, const StageSpec& stage,
                               std::span<const UnitTensors> units, const at::Tensor& hidden,
                               const at::Tensor& targets, StepContext& context);

}  // namespace moesaic
