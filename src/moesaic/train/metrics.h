// metrics.h: metrics.jsonl, one JSON object per line. Written by rank 0 only.
//
// Training steps: step, loss, gradient_norm, learning_rate, tokens_per_s, seconds, blocked_seconds, skipped,
// balance_loss (mean over layers, also where moe.balance_convention = "hf"), z_loss, dropped,
// dropped_non_finite, gather_bytes, reduce_bytes, exchange_bytes, inter_node_bytes, expert_load (per MoE
// layer, the share of choices the fullest expert got times E: 1 is balanced). Evaluations: step,
// heldout_loss, heldout_loss_by_file {name: loss}.
#pragma once

#include <filesystem>
#include <fstream>
#include <vector>

#include "moesaic/train/trainer.h"

namespace moesaic {

class MetricsLog {
 public:
  // Opens for appending. Lines of steps after `steps_done` (left by a run that died past its last checkpoint)
  // are removed first, so that the file reads as one run. Throws IoError.
  MetricsLog(const std::filesystem::path& file, std::int64_t steps_done);

  void write(const StepReport& report);
  void write(std::int64_t step, const std::vector<HeldOutLoss>& losses);

 private:
  void append(const std::string& line);

  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace moesaic
