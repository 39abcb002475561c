#include "moesaic/interop/safetensors_set.h"

#include <algorithm>

#include "moesaic/core/error.h"
#include "moesaic/core/json.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kIndexSuffix = ".index.json";

// A shard lies beside its index: a plain file name, never a path out of the folder.
void check_shard_name(const fs::path& index, const std::string& tensor, const nlohmann::json& value) {
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  if (name.empty() || name == "." || name == ".." || name.find_first_of("/\\") != std::string::npos) {
    throw CorruptData(fmt::format("{}: tensor '{}' is in shard {}, expected a plain file name",
                                  index.string(), tensor, value.dump()));
  }
}

}  // namespace

SafetensorsSet SafetensorsSet::open(const fs::path& path) try {
  SafetensorsSet set;
  set.path_ = path;
  if (!fs::is_directory(path)) {
    path.string().ends_with(kIndexSuffix) ? set.add_index(path) : set.add_all_of(path);
  } else if (fs::exists(path / kIndexName)) {
    set.add_index(path / kIndexName);
  } else if (fs::exists(path / "model.safetensors")) {
    set.add_all_of(path / "model.safetensors");
  } else {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::ranges::sort(files);
    if (files.empty()) throw IoError(fmt::format("{} holds no .safetensors file", path.string()));
    for (const fs::path& file : files) set.add_all_of(file);
  }
  return set;
} catch (const fs::filesystem_error& error) {
  throw IoError(fmt::format("cannot open {}: {}", path.string(), error.code().message()));
}

void SafetensorsSet::add_all_of(const fs::path& file) {
  const SafetensorsReader& reader = shards_.emplace_back(file);
  for (const TensorInfo& tensor : reader.tensors()) {
    const auto [found, added] = shard_of_.emplace(tensor.name, shards_.size() - 1);
    if (!added) {
      throw CorruptData(fmt::format("tensor '{}' is in both {} and {}", tensor.name,
                                    shards_[found->second].path().string(), file.string()));
    }
  }
}

void SafetensorsSet::add_index(const fs::path& file) {
  const nlohmann::json index = parse_json(read_text(file), file.string(), 8);
  if (!index.is_object() || !index.contains("weight_map") || !index.at("weight_map").is_object()) {
    throw CorruptData(fmt::format("{}: expected an object with an object weight_map", file.string()));
  }
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, value] : index.at("weight_map").items()) {
    check_shard_name(file, tensor, value);
    const auto shard_name = value.get<std::string>();
    const auto [found, is_new] = opened.emplace(shard_name, shards_.size());
    if (is_new) {
      const fs::path shard_path = file.parent_path() / shard_name;
      if (!fs::exists(shard_path)) {
        throw IoError(
            fmt::format("{}: shard {} of tensor '{}' is missing", file.string(), shard_name, tensor));
      }
      shards_.emplace_back(shard_path);
    }
    if (!shards_[found->second].contains(tensor)) {
      throw CorruptData(
          fmt::format("{}: tensor '{}' is not in its shard {}", file.string(), tensor, shard_name));
    }
    shard_of_.emplace(tensor, found->second);
  }
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  return names;
}

const SafetensorsReader& SafetensorsSet::shard(std::string_view name) const {
  const auto found = shard_of_.find(std::string(name));
  require(found != shard_of_.end(), "{} has no tensor '{}'", path_.string(), name);
  return shards_[found->second];
}

}  // namespace moesaic
