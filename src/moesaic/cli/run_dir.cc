#include "moesaic/cli/run_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "moesaic/cli/launch.h"
#include "moesaic/core/error.h"
#include "moesaic/train/agree.h"
#include "moesaic/train/checkpoint_dir.h"

namespace moesaic::cli {

void RunSource::add_options(CLI::App& command) {
  command.add_option("--run-dir", run_dir, "directory of the training run")->required();
  command.add_option("--checkpoint", checkpoint, "a checkpoint directory (default: the newest complete one)");
  command.add_option("--set", overrides, "override a configuration key: section.key=value");
  command.add_option("--ranks", ranks, "ranks, as threads of this process (default: as configured)")
      ->check(kRanks);
}

Config RunSource::load() const {
  Config config = load_config(config_of_run(run_dir), overrides);
  set_ranks(config, ranks);
  return config;
}

std::filesystem::path RunSource::find(Communicator& world) const {
  return checkpoint.empty() ? newest_checkpoint(world, run_dir / "checkpoints") : checkpoint;
}

std::filesystem::path config_of_run(const std::filesystem::path& run_dir) {
  std::filesystem::path file = run_dir / "config.toml";
  require(std::filesystem::exists(file), "{} does not exist; is {} the --run-dir of a training run?",
          file.string(), run_dir.string());
  return file;
}

std::filesystem::path newest_checkpoint(const std::filesystem::path& checkpoints) {
  if (const auto newest = find_newest(checkpoints)) return *newest;
  std::vector<std::filesystem::path> damaged;
  if (std::filesystem::is_directory(checkpoints)) {
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
      if (entry.is_directory() && entry.path().extension() != ".tmp") damaged.push_back(entry.path());
    }
  }
  if (damaged.empty()) throw IoError(fmt::format("no checkpoint in {}", checkpoints.string()));
  const std::filesystem::path newest = *std::ranges::max_element(damaged);
  verify_checkpoint(newest);  // says which file, what was got and what was expected
  throw CorruptData(fmt::format("{} is not a complete checkpoint", newest.string()));
}

std::filesystem::path newest_checkpoint(Communicator& world, const std::filesystem::path& checkpoints) {
  std::string found;
  Failure failure;
  if (world.rank() == 0) attempt(failure, [&] { found = newest_checkpoint(checkpoints).string(); });
  agree(world, failure);
  return gather_texts(world, found).front();
}

void set_ranks(Config& config, int ranks) {
  if (ranks == 0) return;
  const int size = mpi_size();
  require(size < 0 || size == ranks, "--ranks {} but the MPI job has {} ranks", ranks, size);
  config.parallel.ranks = ranks;
}

std::filesystem::path default_run_dir(const std::filesystem::path& config_file) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  return std::filesystem::path("runs") / fmt::format("{}-{}", text, config_file.stem().string());
}

}  // namespace moesaic::cli
