// safetensors.h: tensors in files, read in parts and written as a stream.
//
// Format: 8 bytes little-endian header length; a JSON object name -> {dtype, shape, data_offsets}, which may
// end in spaces; the data. Every rule is checked on opening, before any data is trusted: the tensors must
// cover the data exactly, without overlap or gap, and the file must end where they end. Local; no torch.
//
// Errors: CorruptData (file, tensor, what was got, what was expected), IoError, InvalidArgument for bad
// requests. Source: github.com/huggingface/safetensors, README "Format".
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/core/dtype.h"
#include "moesaic/core/file.h"

namespace moesaic {

// Longer headers are rejected, on reading and writing. The reference implementation has the same cap.
inline constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes from the start of the data; set by reader and writer
  std::int64_t end = 0;
  std::int64_t bytes() const { return end - begin; }
};

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // In the order of their data.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return index_.contains(std::string(name)); }
  const TensorInfo& info(std::string_view name) const;

  // Bytes [offset, offset + bytes.size()) of one tensor.
  void read(std::string_view name, std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  File file_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> index_;
  std::int64_t data_start_ = 0;
};

// Writes one file. The tensors are declared first; their bytes may come in any order and any pieces. Wider
// elements are laid out first, so every tensor is aligned to its element.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  // Removes the file unless finish() returned.
  ~SafetensorsWriter();
  SafetensorsWriter(SafetensorsWriter&&) = delete;

  void write(std::string_view name, std::int64_t offset, std::span<const std::byte> bytes);
  // On the disk on return. InvalidArgument naming a tensor that did not get all of its bytes.
  void finish();

 private:
  File file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::int64_t> written_;  // bytes so far, by tensor
  std::int64_t data_start_ = 0;
  bool finished_ = false;
};

}  // namespace moesaic
