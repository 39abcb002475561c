#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/core/error.h"
#include "moesaic/interop/safetensors_set.h"
#include "moesaic/shard/memory_plan.h"
#include "moesaic/train/checkpoint_dir.h"
#include "moesaic/train/data.h"
#include "moesaic/train/trainer.h"

namespace moesaic::cli {
namespace {

namespace fs = std::filesystem;

bool holds_checkpoints(const fs::path& folder) {
  return std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("step-");
  });
}

struct InspectCommand {
  fs::path path;
  int ranks = 0;
  std::string format = "bytes";
  bool verbose = false;

  void run() const;
  void memory_plan() const;
  void tensors() const;
  void checkpoint(const fs::path& folder) const;
  void tokens() const;
};

void InspectCommand::memory_plan() const {
  Config config = load_config(path);
  set_ranks(config, ranks);
  const auto world_size = static_cast<int>(config.parallel.ranks);
  const std::int64_t sequences = (micro_batch_sequences(config) + world_size - 1) / world_size;
  const auto per_node = static_cast<int>(config.comm.ranks_per_node);
  const Topology topology =
      per_node > 0 ? Topology::uniform(world_size, per_node) : Topology::one_node(world_size);
  fmt::print("{}", describe(plan_memory(config.model, parallel_options(config), topology,
                                        moments_per_element(config), sequences * config.data.seq_len,
                                        recomputed_layers(config)),
                            world_size));
}

void InspectCommand::tensors() const {
  const SafetensorsSet set = SafetensorsSet::open(path);
  std::int64_t elements = 0, bytes = 0;
  for (const std::string& name : set.names()) {
    const TensorInfo& info = set.info(name);
    bytes += info.bytes();
    elements += info.bytes() / size_of(info.dtype);
    if (verbose) fmt::print("  {:<60} {:<6} [{}]\n", name, name_of(info.dtype), fmt::join(info.shape, ", "));
  }
  fmt::print("{}: {} tensors, {} elements, {:.1f} MiB\n", path.string(), set.names().size(), elements,
             static_cast<double>(bytes) / (1024.0 * 1024.0));
}

void InspectCommand::checkpoint(const fs::path& folder) const {
  const CheckpointManifest manifest = read_manifest(folder);
  fmt::print("{}\n  steps done {}, next sample {}\n  placement {}\n  state {}\n", folder.string(),
             manifest.step, manifest.next_sample, manifest.placement, manifest.extra);
  for (const FileEntry& file : manifest.files) {
    fmt::print("  {:<44} {:>12} bytes  crc32c {:08x}\n", file.name, file.bytes, file.crc32c);
  }
  verify_checkpoint(folder);
  fmt::print("  every file has the size and the checksum of the manifest\n");
  if (verbose) fmt::print("\n{}", manifest.config_toml);
}

void InspectCommand::tokens() const {
  constexpr std::array kFormats = {
      std::pair{"bytes", TokenFormat::kBytes}, std::pair{"uint8", TokenFormat::kUint8},
      std::pair{"uint16", TokenFormat::kUint16}, std::pair{"uint32", TokenFormat::kUint32},
      std::pair{"npy", TokenFormat::kNpy}};
  const auto* chosen = std::ranges::find(kFormats, format, [](const auto& entry) { return entry.first; });
  const TokenSource source(path, chosen->second, std::int64_t{1} << 32);
  std::int64_t highest = 0;
  std::vector<std::int64_t> piece;
  constexpr std::int64_t kPiece = 1 << 20;
  for (std::int64_t first = 0; first < source.num_tokens(); first += kPiece) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, source.num_tokens() - first)));
    source.read(first, piece);
    highest = std::max(highest, *std::ranges::max_element(piece));
  }
  fmt::print("{}: {} tokens read as {}, ids up to {}\n", path.string(), source.num_tokens(), format, highest);
  piece.resize(static_cast<std::size_t>(std::min<std::int64_t>(16, source.num_tokens())));
  source.read(0, piece);
  fmt::print("  first: {}\n", fmt::join(piece, " "));
}

void InspectCommand::run() const {
  if (path.extension() == ".toml") return memory_plan();
  if (path.filename() == "manifest.json") return checkpoint(path.parent_path());
  if (path.extension() == ".safetensors" || path.string().ends_with(".index.json")) return tensors();
  require(path.extension() != ".json", "{} is no safetensors index (*.index.json)", path.string());
  if (!fs::is_directory(path)) return tokens();
  if (fs::exists(path / "manifest.json")) return checkpoint(path);
  require(holds_checkpoints(path) || fs::exists(path / "checkpoints"),
          "{} is neither a checkpoint nor a run directory with checkpoints", path.string());
  checkpoint(newest_checkpoint(fs::exists(path / "checkpoints") ? path / "checkpoints" : path));
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* sub = app.add_subcommand(
      "inspect",
      "look into a checkpoint, a run, a safetensors file, a token file, or a configuration's memory plan");
  sub->add_option("path", command->path,
                  "checkpoint or run directory, .safetensors, index .json, .toml, or token file")
      ->required()
      ->check(CLI::ExistingPath);
  sub->add_option("--ranks", command->ranks, "world size of the memory plan (default: as configured)")
      ->check(kRanks);
  sub->add_option("--format", command->format, "of a token file: bytes, uint8, uint16, uint32, npy")
      ->check(CLI::IsMember({"bytes", "uint8", "uint16", "uint32", "npy"}));
  sub->add_flag("--verbose", command->verbose, "every tensor; the checkpoint's configuration");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
