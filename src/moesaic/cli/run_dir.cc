#include "moesaic/cli/run_dir.h"

#include <fmt/format.h>

#include <ctime>

#include "moesaic/core/error.h"
#include "moesaic/train/checkpoint_dir.h"

namespace moesaic::cli {

void RunSource::add_options(CLI::App& command) {
  command.add_option("--run-dir", run_dir, "directory of the training run")->required();
  command.add_option("--checkpoint", checkpoint, "a checkpoint directory (default: the newest complete one)");
  command.add_option("--set", overrides, "override a configuration key: section.key=value");
  command.add_option("--ranks", ranks, "ranks, as threads of this process (default: as configured)")
      ->check(CLI::PositiveNumber);
}

Config RunSource::load() const {
  const std::filesystem::path file = run_dir / "config.toml";
  if (!std::filesystem::exists(file)) {
    throw InvalidArgument(fmt::format("{} does not exist; is {} the --run-dir of a training run?",
                                      file.string(), run_dir.string()));
  }
  Config config = load_config(file, overrides);
  set_ranks(config, ranks);
  return config;
}

std::filesystem::path RunSource::find() const {
  if (!checkpoint.empty()) return checkpoint;
  const auto newest = find_newest(run_dir / "checkpoints");
  if (!newest) throw IoError(fmt::format("no complete checkpoint in {}", (run_dir / "checkpoints").string()));
  return *newest;
}

void set_ranks(Config& config, int ranks) {
  if (ranks > 0) config.parallel.ranks = ranks;
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
