// checkpoint_files.h: which files a checkpoint is made of, and which tensors may lie in which.
//
// Each of the W ranks that save writes one file of each kind, and two indices say which tensor is where.
// Loading looks tensors up by name, under any placement; what it was saved under is checked all the same, for
// a checkpoint that contradicts itself is not one that this program wrote. Local functions.
//
// Errors: CorruptData naming the file or tensor, what was got and what was expected.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "moesaic/interop/safetensors_set.h"
#include "moesaic/nn/model_config.h"
#include "moesaic/placement/placement.h"
#include "moesaic/train/checkpoint_dir.h"

namespace moesaic {

inline constexpr const char* kModelFiles = "model";
inline constexpr const char* kOptimizerFiles = "optimizer";

// "model-00001-of-00004.safetensors", "model.safetensors.index.json".
std::string tensor_file_name(const std::string& kind, int rank, int world_size);
std::string index_file_name(const std::string& kind);

// JSON for CheckpointManifest::placement: {"world_size", "exchange_size", "num_experts", "experts_of"}, the
// last one being the experts of each place of an exchange group.
std::string placement_to_json(const Placement& placement);

// The placement of `num_experts` experts that the manifest tells: one list for each place, each expert in one
// of them (without lists, as in older checkpoints, in order), and files of that many ranks. `source` is the
// manifest's file, for messages.
Placement saved_placement(const CheckpointManifest& manifest, const std::string& source, int num_experts);

// Every tensor lies in one file alone, and those of an expert (of `units`, under each of `prefixes`) in the
// file of one of its owners. `set` has all tensors of `units`, and `placement` their experts.
void check_owners(const SafetensorsSet& set, const std::string& kind, std::span<const UnitSpec> units,
                  std::span<const std::string> prefixes, const Placement& placement);

}  // namespace moesaic
