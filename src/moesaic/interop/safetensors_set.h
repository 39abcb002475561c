// safetensors_set.h: the tensors of a model that may be spread over several safetensors files.
//
// Local. Errors name the file, shard or tensor: CorruptData for a bad index, IoError for a missing shard.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/interop/safetensors.h"

namespace moesaic {

class SafetensorsSet {
 public:
  // `path` is a .safetensors file, an index (*.index.json: only the shards and tensors it names count), or a
  // directory: then its model.safetensors.index.json, else its model.safetensors, else all its *.safetensors
  // files.
  static SafetensorsSet open(const std::filesystem::path& path);

  // Ascending.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return shard_of_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const { return shard(name).info(name); }
  void read(std::string_view name, std::int64_t offset, std::span<std::byte> bytes) const {
    shard(name).read(name, offset, bytes);
  }
  std::span<const SafetensorsReader> shards() const { return shards_; }
  // That of the tensor.
  const std::filesystem::path& file_of(std::string_view name) const { return shard(name).path(); }

 private:
  const SafetensorsReader& shard(std::string_view name) const;
  void add_all_of(const std::filesystem::path& file);
  void add_index(const std::filesystem::path& file);

  std::filesystem::path path_;
  std::vector<SafetensorsReader> shards_;
  std::map<std::string, std::size_t> shard_of_;  // by tensor name
};

}  // namespace moesaic
