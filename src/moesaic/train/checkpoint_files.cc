#include "moesaic/train/checkpoint_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "moesaic/core/error.h"
#include "moesaic/shard/unit_layout.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr const char* kOrigin = "the manifest's placement";

template <typename... Args>
void expect(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) throw CorruptData(fmt::format(format, std::forward<Args>(args)...));
}

// A number that an int can hold, at least 1.
int count_in(const Json& json, const char* key, const std::string& source) {
  const Json& value = json.at(key);
  expect(value.is_number_integer() && value >= 1 && value <= std::numeric_limits<int>::max(),
         "{}: {} in {} is {}, expected an integer of at least 1", source, key, kOrigin, value.dump());
  return value.get<int>();
}

// owner_in_group of experts_of.
std::vector<int> owners_in(const Json& lists, int num_experts, int exchange_size, const std::string& source) {
  expect(lists.is_array() && std::ssize(lists) == exchange_size,
         "{}: {} lists the experts of {} ranks, expected those of the {} of an exchange group", source,
         kOrigin, lists.size(), exchange_size);
  std::vector<int> owner(static_cast<std::size_t>(num_experts), -1);
  for (int place = 0; place < exchange_size; ++place) {
    for (const Json& entry : lists.at(static_cast<std::size_t>(place))) {
      expect(entry.is_number_integer() && entry >= 0 && entry < num_experts,
             "{}: {} gives rank {} of an exchange group expert {}, expected one of 0..{}", source, kOrigin,
             place, entry.dump(), num_experts - 1);
      int& found = owner[entry.get<std::size_t>()];
      expect(found < 0, "{}: {} gives expert {} to ranks {} and {} of an exchange group, expected one owner",
             source, kOrigin, entry.dump(), found, place);
      found = place;
    }
  }
  const auto nobodys = std::ranges::find(owner, -1);
  expect(nobodys == owner.end(), "{}: {} gives expert {} to no rank, expected one of 0..{}", source, kOrigin,
         nobodys - owner.begin(), exchange_size - 1);
  return owner;
}

// As many ranks have written as the placement says.
void check_file_list(const CheckpointManifest& manifest, int world_size, const std::string& source) {
  expect(std::ssize(manifest.files) == 2 * std::int64_t{world_size} + 2,
         "{}: lists {} files, expected {}, as {} ranks write them", source, manifest.files.size(),
         2 * std::int64_t{world_size} + 2, world_size);
  std::set<std::string> expected;
  for (const std::string kind : {kModelFiles, kOptimizerFiles}) {
    expected.insert(index_file_name(kind));
    for (int rank = 0; rank < world_size; ++rank) expected.insert(tensor_file_name(kind, rank, world_size));
  }
  for (const FileEntry& file : manifest.files) {
    expect(expected.erase(file.name) > 0, "{}: lists {} (again), expected of {} ranks {}", source, file.name,
           world_size, fmt::join(expected, " "));
  }
}

}  // namespace

std::string tensor_file_name(const std::string& kind, int rank, int world_size) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, rank, world_size);
}

std::string index_file_name(const std::string& kind) { return kind + ".safetensors.index.json"; }

std::string placement_to_json(const Placement& placement) {
  Json lists = Json::array();
  for (int place = 0; place < placement.exchange_size(); ++place) {
    const std::span<const int> experts = placement.experts_of(place);
    lists.push_back(std::vector<int>(experts.begin(), experts.end()));
  }
  return Json{{"num_experts", placement.num_experts()},
              {"world_size", placement.world_size()},
              {"exchange_size", placement.exchange_size()},
              {"experts_of", std::move(lists)}}
      .dump();
}

Placement saved_placement(const CheckpointManifest& manifest, const std::string& source,
                          int num_experts) try {
  const Json json = Json::parse(manifest.placement);
  expect(json.at("num_experts") == num_experts, "{}: {} has {} experts, expected the {} of the model", source,
         kOrigin, json.at("num_experts").dump(), num_experts);
  const int world_size = count_in(json, "world_size", source);
  const int exchange_size = count_in(json, "exchange_size", source);
  expect(world_size % exchange_size == 0 && exchange_size <= num_experts,
         "{}: exchange_size in {} is {}, expected a divisor of the {} ranks, at most the {} experts", source,
         kOrigin, exchange_size, world_size, num_experts);
  check_file_list(manifest, world_size, source);
  if (!json.contains("experts_of")) return Placement::contiguous(num_experts, world_size, exchange_size);
  return Placement::from_table(owners_in(json.at("experts_of"), num_experts, exchange_size, source),
                               world_size, exchange_size);
} catch (const Json::exception& error) {
  throw CorruptData(fmt::format("{}: {} is not what this program writes: {}", source, kOrigin, error.what()));
}

void check_owners(const SafetensorsSet& set, const std::string& kind, std::span<const UnitSpec> units,
                  std::span<const std::string> prefixes, const Placement& placement) {
  for (const SafetensorsReader& file : set.shards()) {
    for (const TensorInfo& tensor : file.tensors()) {
      expect(set.contains(tensor.name), "tensor {} is in {}, but not in the index", tensor.name,
             file.path().string());
      const std::filesystem::path& indexed = set.file_of(tensor.name);
      expect(indexed == file.path(), "tensor {} is in {}, expected only in {}, where the index has it",
             tensor.name, file.path().string(), indexed.string());
    }
  }
  for (const UnitSpec& unit : units) {
    if (unit.kind != UnitKind::kExpert) continue;
    const UnitLayout layout(unit, placement);
    for (int block = 0; block < layout.num_blocks(); ++block) {
      std::vector<std::string> owners;
      for (const int rank : layout.owners(block))
        owners.push_back(tensor_file_name(kind, rank, placement.world_size()));
      for (const Segment& segment : layout.block_segments(block)) {
        for (const std::string& prefix : prefixes) {
          const std::filesystem::path& file = set.file_of(prefix + segment.tensor->name);
          expect(std::ranges::find(owners, file.filename().string()) != owners.end(),
                 "tensor {} is in {}, expected a file of its expert's owner: {}",
                 prefix + segment.tensor->name, file.string(), fmt::join(owners, " or "));
        }
      }
    }
  }
}

}  // namespace moesaic
