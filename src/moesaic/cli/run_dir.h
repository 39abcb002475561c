// run_dir.h: what subcommands that work on a finished or running training need to find.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/train/config.h"

namespace moesaic::cli {

// Options shared by eval and generate: which checkpoint, on how many ranks.
struct RunSource {
  std::filesystem::path run_dir;
  std::filesystem::path checkpoint;  // empty: the newest complete one of run_dir
  std::vector<std::string> overrides;
  int ranks = 0;  // 0: as configured

  void add_options(CLI::App& command);
  // The configuration the run was trained with, with the overrides.
  Config load() const;
  // The checkpoint directory, as rank 0 sees it, on every rank: a run that is under way may finish another
  // one between two looks. Collective; fails as newest_checkpoint().
  std::filesystem::path find(Communicator& world) const;
};

// Applies --ranks: threads of this process. InvalidArgument under MPI when the job has another size.
void set_ranks(Config& config, int ranks);

// Allowed values of --ranks.
inline const CLI::Range kRanks(1, 65536);

// config.toml of a run. InvalidArgument when the directory holds no run.
std::filesystem::path config_of_run(const std::filesystem::path& run_dir);

// The newest complete checkpoint in `checkpoints`. IoError when there is none; CorruptData saying what is
// wrong with the newest one when there are only damaged ones.
std::filesystem::path newest_checkpoint(const std::filesystem::path& checkpoints);

// The same, as rank 0 sees it, on every rank. Collective.
std::filesystem::path newest_checkpoint(Communicator& world, const std::filesystem::path& checkpoints);

// "runs/<time>-<config name>"
std::filesystem::path default_run_dir(const std::filesystem::path& config_file);

}  // namespace moesaic::cli
