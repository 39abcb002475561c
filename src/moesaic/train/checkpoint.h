// checkpoint.h: the state of a Trainer on disk: global tensors, readable under any layout.
//
// step-NNNNNN/ holds (directory protocol: checkpoint_dir.h)
//   model-RRRRR-of-WWWWW.safetensors       fp32 masters of the tensors that rank R writes, whole, under
//   global names optimizer-RRRRR-of-WWWWW.safetensors   moments: "<moment>.<tensor name>"
//   model.safetensors.index.json           Hugging Face's index over the model files
//   manifest.json                          sizes, CRC32C, configuration, steps done, optimizer steps
// Each tensor has one writer: a dense unit's is chosen by its number, an expert block's is one of its owners.
//
// Collective: all ranks, same order. Memory: one unit's block at a time on its writer.
#pragma once

#include <cstdint>
#include <filesystem>

#include "moesaic/train/trainer.h"

namespace moesaic {

// Saves into checkpoints/step-NNNNNN (from trainer.steps_done()) and returns that path. Crash-safe: the
// previous checkpoint stays until this one is complete. Throws IoError on every rank when any rank cannot
// write.
std::filesystem::path save_checkpoint(Trainer& trainer, const std::filesystem::path& checkpoints);

// Loads parameters, moments, gates' states and counters from one checkpoint directory, saved under any
// layout. Verifies sizes and checksums first. Throws CorruptData or InvalidArgument (another model: names the
// tensor), changing nothing.
void load_checkpoint(Trainer& trainer, const std::filesystem::path& checkpoint);

// Parameters and gates' states: enough to evaluate and to generate.
void load_parameters(ShardedModel& model, GateStates& gates, const std::filesystem::path& checkpoint);

}  // namespace moesaic
