// metrics.h: metrics.jsonl, one JSON object per line. Written by rank 0 only.
//
// Training steps:
//   step, loss, gradient_norm, learning_rate, tokens_per_s, skipped
//   balance_loss (mean over layers, also where moe.balance_convention = "hf"), z_loss,
//   gate_loss (of gates that have a further one: sam's alignment)
//   dropped (choices past a capacity), dropped_random (choices left out at random),
//   dropped_non_finite (tokens)
//   seconds, blocked_seconds             of rank 0
//   exposed_seconds, hidden_seconds      communication the compute thread stood still for; communication in
//                                        the background while it did not; means over ranks
//   gather_bytes, reduce_bytes, exchange_bytes, control_bytes    sent by all ranks
//   inter_node_bytes, inter_node_bytes_by_kind {kind: bytes}     those of them that left their node
//   expert_load     per MoE layer, the share of choices the fullest expert got times E: 1 is balanced
//   expert_choices  [MoE layer][E] choices that asked for a slot; every choices_interval() steps
//   exchange_routes per MoE layer, the path its tokens took in the last micro-step (in rank 0's
//                   exchange group); null where experts are gathered, left out where all are
//   times           {seconds: [by rank], working, waiting, background: {phase: [seconds, by rank]}};
//                   every times_interval() steps; phases that took no time are left out. See phase_clock.h
//   gathers         of each unit that can travel coded: unit, method, lossy (true, where it is), words (of
//                   the unit), runs, unsent (of a version that was held), raw_bytes (between nodes, had all
//                   runs been raw), seconds (of the slowest rank), exposed_seconds (of the one that waited
//                   longest); by coded methods also message_bytes (each part's once), bits_per_weight,
//                   encode_seconds, decode_seconds, reference_bytes (of the rank that keeps most), keys,
//                   resyncs (of any rank, with resync_reason where there was one); where a gate decides also
//                   predicted_raw_seconds, predicted_coded_seconds, window_seconds (that computing leaves
//                   them), probe
//   reduces         of each unit whose gradients cross nodes in bf16: unit, wire, lossy (as above), runs,
//                   raw_bytes and message_bytes (between nodes, before and after coding), encode_seconds,
//                   decode_seconds, seconds, exposed_seconds (all as above); where a gate decides also
//                   predicted_bf16_seconds, predicted_entropy_seconds, window_seconds, probe
// Evaluations: step, heldout_loss, heldout_loss_by_file {name: loss}, seconds.
#pragma once

#include <filesystem>
#include <fstream>
#include <vector>

#include "moesaic/train/trainer.h"

namespace moesaic {

// So that the choices of a whole run take about 32 MB at most.
std::int64_t choices_interval(const Config& config);
// The lines of a job of many ranks would be mostly times.
std::int64_t times_interval(std::int64_t num_ranks);

class MetricsLog {
 public:
  // Opens for appending. Lines of steps after `steps_done` (left by a run that died past its last checkpoint)
  // are removed first, so that the file reads as one run. Throws IoError.
  MetricsLog(const std::filesystem::path& file, std::int64_t steps_done);

  void write(const StepReport& report, std::int64_t choices_interval);
  void write(std::int64_t step, const std::vector<HeldOutLoss>& losses, double seconds);

 private:
  void append(const std::string& line);

  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace moesaic
