#include "moesaic/interop/safetensors.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "moesaic/core/error.h"
#include "moesaic/core/json.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::int64_t kLengthBytes = 8;

struct FormatDType {
  std::string_view name;
  DType dtype;
};
constexpr std::array kDTypes = {
    FormatDType{"F64", DType::kF64}, FormatDType{"I64", DType::kI64},   FormatDType{"F32", DType::kF32},
    FormatDType{"I32", DType::kI32}, FormatDType{"BF16", DType::kBF16}, FormatDType{"F16", DType::kF16},
    FormatDType{"I16", DType::kI16}, FormatDType{"U8", DType::kU8},     FormatDType{"BOOL", DType::kBool},
};

// -1 when shape or size is negative or exceeds 63 bits.
std::int64_t bytes_of(const TensorInfo& tensor) {
  std::int64_t bytes = size_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return -1;
  }
  return bytes;
}

struct Parser {
  std::string source;

  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptData(fmt::format("{}: {}", source, what));
  }

  std::int64_t size_from(const std::string& tensor, std::string_view key, const Json& value) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
      fail(fmt::format("tensor '{}': {} holds {}, expected integers from 0 to 2^63-1", tensor, key,
                       value.dump()));
    }
    return value.get<std::int64_t>();
  }

  std::vector<std::int64_t> sizes_from(const std::string& tensor, const char* key, const Json& entry) const {
    if (!entry.at(key).is_array()) {
      fail(fmt::format("tensor '{}': {} is {}, expected an array", tensor, key, entry.at(key).type_name()));
    }
    std::vector<std::int64_t> sizes;
    for (const Json& value : entry.at(key)) sizes.push_back(size_from(tensor, key, value));
    return sizes;
  }

  TensorInfo tensor_from(const std::string& name, const Json& entry) const {
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
      fail(fmt::format("tensor '{}': expected an object of dtype, shape and data_offsets", name));
    }
    TensorInfo tensor{.name = name, .shape = sizes_from(name, "shape", entry)};
    const Json& dtype = entry.at("dtype");
    const auto known = std::ranges::find_if(kDTypes, [&](const FormatDType& known) {
      return dtype.is_string() && dtype.get_ref<const std::string&>() == known.name;
    });
    if (known == kDTypes.end()) {
      fail(fmt::format(
          "tensor '{}': dtype is {}, expected one of F64, I64, F32, I32, BF16, F16, I16, U8, BOOL", name,
          dtype.dump()));
    }
    tensor.dtype = known->dtype;
    const std::vector<std::int64_t> offsets = sizes_from(name, "data_offsets", entry);
    if (offsets.size() != 2)
      fail(fmt::format("tensor '{}': {} data_offsets, expected 2", name, offsets.size()));
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
    const std::int64_t bytes = bytes_of(tensor);
    if (bytes < 0) fail(fmt::format("tensor '{}': shape {} is too large", name, entry.at("shape").dump()));
    if (tensor.begin > tensor.end || tensor.bytes() != bytes) {
      fail(fmt::format("tensor '{}': data_offsets are [{}, {}], expected {} bytes for {} {}", name,
                       tensor.begin, tensor.end, bytes, known->name, entry.at("shape").dump()));
    }
    return tensor;
  }

  std::map<std::string, std::string> metadata_from(const Json& entry) const {
    if (!entry.is_object())
      fail(fmt::format("{} is {}, expected an object", kMetadataKey, entry.type_name()));
    std::map<std::string, std::string> metadata;
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string())
        fail(fmt::format("{} '{}' is {}, expected a string", kMetadataKey, key, value.type_name()));
      metadata[key] = value.get<std::string>();
    }
    return metadata;
  }
};

std::map<std::string, std::size_t> index_of(std::span<const TensorInfo> tensors) {
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < tensors.size(); ++i) index.emplace(tensors[i].name, i);
  return index;
}

const TensorInfo& find(std::span<const TensorInfo> tensors, const std::map<std::string, std::size_t>& index,
                       std::string_view name, const std::filesystem::path& path) {
  const auto found = index.find(std::string(name));
  require(found != index.end(), "{} has no tensor '{}'", path.string(), name);
  return tensors[found->second];
}

void check_range(const TensorInfo& tensor, std::int64_t offset, std::size_t size,
                 const std::filesystem::path& path) {
  const auto bytes = static_cast<std::uint64_t>(tensor.bytes());
  require(offset >= 0 && size <= bytes && static_cast<std::uint64_t>(offset) <= bytes - size,
          "{}: {} bytes at {} of tensor '{}' requested, which has {}", path.string(), size, offset,
          tensor.name, bytes);
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : file_(File::open(path)) {
  const Parser parser{path.string()};
  const std::int64_t size = file_.size();
  if (size < kLengthBytes) parser.fail(fmt::format("{} bytes, expected at least {}", size, kLengthBytes));
  std::array<std::uint8_t, kLengthBytes> prefix;
  file_.read_at(0, std::as_writable_bytes(std::span(prefix)));
  std::uint64_t length = 0;
  for (std::size_t i = prefix.size(); i-- > 0;) length = length << 8 | prefix[i];
  const std::int64_t longest = std::min(kMaxSafetensorsHeader, size - kLengthBytes);
  if (length > static_cast<std::uint64_t>(longest)) {
    parser.fail(fmt::format("header of {} bytes, expected at most {} (the file has {} bytes, the cap is {})",
                            length, longest, size, kMaxSafetensorsHeader));
  }
  std::string text(length, '\0');
  file_.read_at(kLengthBytes, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with('{')) parser.fail("the header does not start with '{'");
  data_start_ = kLengthBytes + static_cast<std::int64_t>(length);

  const Json header = parse_json(text, parser.source, 3);  // {name: {shape: []}}
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = parser.metadata_from(entry);
    } else {
      tensors_.push_back(parser.tensor_from(name, entry));
    }
  }
  std::ranges::sort(tensors_, {}, [](const TensorInfo& t) { return std::tie(t.begin, t.end, t.name); });
  std::int64_t end = 0;
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.begin != end) {
      parser.fail(fmt::format("tensor '{}' starts at byte {}, expected {}: the data {}", tensor.name,
                              tensor.begin, end, tensor.begin < end ? "overlap" : "have a gap"));
    }
    end = tensor.end;
  }
  if (end != size - data_start_) {
    parser.fail(fmt::format("{} bytes of data, expected {} as the header says", size - data_start_, end));
  }
  index_ = index_of(tensors_);
}

const TensorInfo& SafetensorsReader::info(std::string_view name) const {
  return find(tensors_, index_, name, path());
}

void SafetensorsReader::read(std::string_view name, std::int64_t offset, std::span<std::byte> bytes) const {
  const TensorInfo& tensor = info(name);
  check_range(tensor, offset, bytes.size(), path());
  file_.read_at(data_start_ + tensor.begin + offset, bytes);
}

namespace {

// Fixes begin and end, and gives the header's bytes, length prefix included. Nothing is written when this
// throws.
std::string lay_out(const std::filesystem::path& path, std::vector<TensorInfo>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  std::ranges::stable_sort(tensors, std::greater(), [](const TensorInfo& t) { return size_of(t.dtype); });
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::int64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    require(tensor.name != kMetadataKey && !header.contains(tensor.name),
            "{}: tensor '{}' is declared twice or has a reserved name", path.string(), tensor.name);
    const std::int64_t bytes = bytes_of(tensor);
    tensor.begin = end;
    require(bytes >= 0 && !__builtin_add_overflow(end, bytes, &end),
            "{}: the shape of tensor '{}' is negative or too large", path.string(), tensor.name);
    tensor.end = end;
    const auto known = std::ranges::find(kDTypes, tensor.dtype, &FormatDType::dtype);
    header[tensor.name] = {
        {"dtype", known->name}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {  // a name that is not UTF-8
    throw InvalidArgument(fmt::format("{}: {}", path.string(), error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data start 8-aligned
  const auto length = static_cast<std::int64_t>(text.size());
  require(length <= kMaxSafetensorsHeader, "{}: header of {} bytes, expected at most {}", path.string(),
          length, kMaxSafetensorsHeader);
  std::string prefix;
  for (int byte = 0; byte < kLengthBytes; ++byte) prefix += static_cast<char>(length >> (8 * byte) & 0xff);
  return prefix + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)) {
  const std::string header = lay_out(path, tensors_, metadata);
  index_ = index_of(tensors_);
  written_.resize(tensors_.size());
  data_start_ = static_cast<std::int64_t>(header.size());
  file_ = File::create(path);
  try {
    file_.write_at(0, std::as_bytes(std::span(header)));
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  std::error_code ignored;
  if (!finished_) std::filesystem::remove(file_.path(), ignored);
}

void SafetensorsWriter::write(std::string_view name, std::int64_t offset, std::span<const std::byte> bytes) {
  const TensorInfo& tensor = find(tensors_, index_, name, file_.path());
  check_range(tensor, offset, bytes.size(), file_.path());
  file_.write_at(data_start_ + tensor.begin + offset, bytes);
  written_[index_.at(tensor.name)] += static_cast<std::int64_t>(bytes.size());
}

void SafetensorsWriter::finish() {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    require(written_[i] == tensors_[i].bytes(), "{}: tensor '{}' got {} bytes, expected {}",
            file_.path().string(), tensors_[i].name, written_[i], tensors_[i].bytes());
  }
  file_.sync();
  finished_ = true;
}

}  // namespace moesaic
