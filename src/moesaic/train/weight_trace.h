// weight_trace.h: a folder with the weights of a run at some of its steps, as bf16 images.
//
//   trace.json                  what was recorded (TraceIndex); rewritten after every image
//   step-000030.safetensors     one bf16 tensor [words] per unit, under the unit's name: its tensors back to
//                               back, experts in order, without padding
//
// The image of step s holds the weights that the forward pass of step s computes with, as a bf16 gather sends
// them then: the masters after s-1 updates, rounded to nearest even. So images s-1 and s differ by the update
// at the end of step s-1. It is the same for any number of ranks and both dtypes. Units that travel in fp32
// whatever the dtype (the router) are left out. Local.
//
// Errors: IoError (no such folder); CorruptData naming the file (truncated, damaged, not of this format).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/codec/statistics.h"
#include "moesaic/core/buffer.h"
#include "moesaic/nn/model_config.h"
#include "moesaic/train/checkpoint_dir.h"

namespace moesaic {

struct TracedUnit {
  std::string name;
  UnitKind kind = UnitKind::kDense;
  std::int64_t words = 0;
  std::int64_t experts = 0;                         // 0: dense
  std::vector<std::vector<std::int64_t>> matrices;  // shapes: of each expert's tensors; of a dense unit's own
  bool operator==(const TracedUnit&) const = default;
};

struct TracedImage {
  std::int64_t step = 0;
  double learning_rate = 0;  // of the update that gave these weights; 0 for the initial ones
  FileEntry file;
};

struct TraceIndex {
  std::string config_toml;
  std::string compute_dtype;
  std::vector<TracedUnit> units;
  std::vector<TracedImage> images;  // by step
};

// The units of a model that a trace holds, in order.
std::vector<TracedUnit> traced_units(std::span<const UnitSpec> specs);

bool holds_trace(const std::filesystem::path& folder);
TraceIndex read_trace_index(const std::filesystem::path& folder);
// Safe: written beside, then renamed.
void write_trace_index(const std::filesystem::path& folder, const TraceIndex& index);
std::string image_name(std::int64_t step);  // "step-000030.safetensors"

// The units of one kind over three steps in a row, and which update that was.
struct TracedStep {
  std::int64_t step = 0;
  double learning_rate = 0;
  std::vector<Buffer> before, reference, current;  // by unit; `before` empty where step-2 was not recorded
};

// Of each unit, for the codec's statistics and trials; borrows from `step`.
std::vector<codec::UnitStep> unit_steps(const TracedStep& step);

// Recorded steps whose predecessor was recorded too. InvalidArgument when there is none.
std::vector<std::int64_t> steps_with_reference(const TraceIndex& index);

// Every byte against its checksum.
TracedStep read_traced_step(const std::filesystem::path& folder, const TraceIndex& index, std::int64_t step,
                            UnitKind kind);

}  // namespace moesaic
