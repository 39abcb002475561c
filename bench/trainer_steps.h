// trainer_steps.h: `moesaic_bench steps`: the trainer, one optimizer step per request.
#pragma once

#include <filesystem>

namespace moesaic::bench {

// Trains the run of `config_file` on ranks that are threads. Saves the initial weights into `checkpoints` and
// prints {"checkpoint": path}; then for every line read {"loss", "gradient_norm"} of one step. Ends with its
// input.
void serve_trainer_steps(const std::filesystem::path& config_file, const std::filesystem::path& checkpoints);

}  // namespace moesaic::bench
