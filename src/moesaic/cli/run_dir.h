// run_dir.h: what subcommands that work on a finished or running training need to find.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <vector>

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
  // The checkpoint directory. IoError when there is none.
  std::filesystem::path find() const;
};

// Applies --ranks: threads of this process; under MPI it must agree with the job (checked by launch).
void set_ranks(Config& config, int ranks);

// "runs/<time>-<config name>"
std::filesystem::path default_run_dir(const std::filesystem::path& config_file);

}  // namespace moesaic::cli
