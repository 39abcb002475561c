// config.h: everything a run can be told, and how it is read, checked, written back and documented.
//
// docs/configuration.md is reference_markdown() of this list: key, type, default, allowed values, meaning.
// Local.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/core/dtype.h"
#include "moesaic/nn/model_config.h"
#include "moesaic/shard/parallel.h"

namespace moesaic {

enum class TokenFormat { kBytes, kUint8, kUint16, kUint32, kNpy };
enum class OptimizerKind { kAdamW, kSgd };
enum class LrSchedule { kCosine, kConstant };

struct ParallelConfig {
  std::vector<std::string> experts = {
      "gather"};  // "gather" or "exchange"; one for all layers, or one per layer
  std::int64_t exchange_size = 0;
  std::int64_t ranks = 1;
  std::int64_t threads_per_rank = 1;
};

struct CommConfig {
  std::optional<Route> route;  // none: "auto"
  std::optional<DType> wire;   // of sums on their way home; none: train.dtype
  double timeout_s = 600.0;
  std::int64_t ranks_per_node = 0;
  bool overlap = true;
  std::int64_t exchange_chunks = 0;  // 0: as many as pay
};

struct CodecConfig {
  std::optional<codec::Method> method;  // none: "auto"
  ReferenceMode reference = ReferenceMode::kNode;
  std::optional<codec::GradientWire> gradients;  // none = auto
  std::string calibration;  // a file of `moesaic calibrate`; empty: measured at the start
};

struct DataConfig {
  std::vector<std::string> files;    // absolute once loaded
  std::vector<double> weights = {};  // of the files; empty = by size
  TokenFormat format = TokenFormat::kBytes;
  double held_out_fraction = 0.1;
  std::int64_t seq_len = 128;
};

struct OptimConfig {
  OptimizerKind name = OptimizerKind::kAdamW;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;
  double clip_norm = 1.0;
  LrSchedule schedule = LrSchedule::kCosine;
  std::int64_t warmup_steps = 0;
  double final_lr_fraction = 0.1;
};

struct TrainConfig {
  std::int64_t steps = 100;
  std::int64_t stop_at = 0;
  DType dtype = DType::kF32;
  std::int64_t seed = 1;
  std::int64_t batch_tokens = 4096;
  std::int64_t accumulation = 1;
  std::vector<std::string> recompute = {"none"};  // "none" or "full"; one for all layers, or one per layer
  std::int64_t eval_every = 0;
  std::int64_t eval_tokens = 0;
  std::int64_t max_skipped_steps = 10;
};

struct CheckpointConfig {
  std::int64_t every = 0;
  std::int64_t keep_last = 0;
};

struct Config {
  ModelConfig model;
  std::vector<std::string> moe_per_layer;  // "LAYER.key=value"; read into model.own_moe
  ParallelConfig parallel;
  CommConfig comm;
  CodecConfig codec;
  DataConfig data;
  OptimConfig optim;
  TrainConfig train;
  CheckpointConfig checkpoint;
};

// The file, then the overrides ("section.key=value") in order, then validate(). Relative data.files of the
// file are taken from the file's folder, those of an override from the current directory. InvalidArgument
// names file and line (or the override), key, value got, and what is allowed; IoError: cannot be read.
Config load_config(const std::filesystem::path& path, std::span<const std::string> overrides = {});

// The same from text, such as the configuration in a checkpoint. `source` names it in errors; `folder` is
// where relative data.files start.
Config parse_config(std::string_view text, std::string_view source, const std::filesystem::path& folder,
                    std::span<const std::string> overrides = {});

// Fills model.own_moe from moe_per_layer: model.moe with what a layer has otherwise. A layer with another
// gate does not inherit options that only other gates read. InvalidArgument as for overrides.
void read_layers(Config& config);

// What a user should know before training: gates that look across the batch, wires that are lossy. One line
// each.
std::vector<std::string> notes(const Config& config);

// Every key with its value. parse_config() of it gives an equal Config, doubles bit for bit.
std::string to_toml(const Config& config);

// The text of docs/configuration.md.
std::string reference_markdown();

// Checks that involve several keys. InvalidArgument names the keys, what was got and what is allowed.
void validate(const Config& config);

// Resuming: what must not have changed since `saved` for the run to be the same one: the model, what routing
// computes, the data and its order. InvalidArgument naming the first key that has, and both values. Files may
// have moved: only their names count.
void require_same_run(const Config& saved, const Config& now);

// Whether the experts of `layer` are reached by moving tokens (else by moving weights).
bool exchanges_tokens(const Config& config, std::int64_t layer);

// Layers whose activations are computed again in the backward pass: [num_layers].
std::vector<bool> recomputed_layers(const Config& config);

// Sequences of all ranks in one micro-step: batch_tokens / (seq_len * accumulation).
std::int64_t micro_batch_sequences(const Config& config);

}  // namespace moesaic
