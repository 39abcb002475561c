#include "moesaic/train/token_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/core/error.h"
#include "moesaic/core/json.h"
#include "moesaic/interop/npy.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

struct Element {
  std::string_view descr;  // NumPy's name
  std::string_view name;
  std::int64_t bytes;
  bool is_signed;
};
constexpr std::array kElements = {Element{"|u1", "uint8", 1, false}, Element{"<u2", "uint16", 2, false},
                                  Element{"<u4", "uint32", 4, false}, Element{"<i4", "int32", 4, true},
                                  Element{"<i8", "int64", 8, true}};

Element element_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::kUint16:
      return kElements[1];
    case TokenFormat::kUint32:
      return kElements[2];
    case TokenFormat::kBytes:
    case TokenFormat::kUint8:
      return kElements[0];
    case TokenFormat::kNpy:
      break;
  }
  throw InvalidArgument("a .npy file names its element itself");
}

// A pipe would block in open().
File open_regular(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  require(!fs::exists(status) || fs::is_regular_file(status),
          "token file {} is a folder or a device, expected a file", path.string());
  return File::open(path);
}

std::vector<std::byte> first_bytes(const File& file, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(count, file.size())));
  file.read_at(0, bytes);
  return bytes;
}

// The element of a .npy file and where its data begins, after everything the header says has been checked.
struct NpyTokens {
  Element element;
  std::int64_t offset;
};
NpyTokens inspect_npy(const File& file, std::int64_t file_bytes) {
  const std::string name = "token file " + file.path().string();
  const std::int64_t offset = npy_data_offset(first_bytes(file, kNpyPreludeBytes), name);
  const NpyHeader header = parse_npy_header(first_bytes(file, offset), name);
  const auto* element = std::ranges::find(kElements, header.descr, &Element::descr);
  if (element == kElements.end()) {
    std::vector<std::string_view> names;
    for (const Element& known : kElements) names.push_back(known.name);
    throw InvalidArgument(fmt::format("{} holds elements of type '{}'{}, expected little-endian {}", name,
                                      header.descr, header.descr.starts_with('>') ? " (big-endian)" : "",
                                      fmt::join(names, ", ")));
  }
  require(header.shape.size() == 1, "{} has shape ({}), expected one dimension", name,
          fmt::join(header.shape, ", "));
  const std::int64_t count = header.shape[0];
  // A division: the product may overflow.
  if ((file_bytes - offset) % element->bytes != 0 || (file_bytes - offset) / element->bytes != count) {
    throw CorruptData(fmt::format("{} has {} bytes after its header, expected {} of {} bytes each", name,
                                  file_bytes - offset, count, element->bytes));
  }
  return {*element, offset};
}

// What python -m moesaic.tokenize has left beside the file. Ids read in another width would be noise that
// trains without complaint. Other people's JSON is none of our business.
void check_side_file(const fs::path& path, std::string_view dtype, std::int64_t num_tokens,
                     std::int64_t vocab_size) {
  const fs::path side_file = path.string() + ".json";
  std::error_code error;
  if (!fs::is_regular_file(side_file, error)) return;
  nlohmann::json side;
  try {
    side = parse_json(read_text(side_file), side_file.string(), 16);
  } catch (const CorruptData&) {
    return;
  }
  if (!side.is_object() || side.value("format", nlohmann::json()) != "moesaic tokens") return;
  try {
    const auto wrote = side.at("dtype").get<std::string>();
    const auto tokens = side.at("num_tokens").get<std::int64_t>(),
               vocabulary = side.at("vocab_size").get<std::int64_t>();
    require(wrote == dtype, "token file {} holds {} (says {}), but is read as {}; is data.format right?",
            path.string(), wrote, side_file.filename().string(), dtype);
    if (tokens != num_tokens) {
      throw CorruptData(fmt::format("token file {} has {} tokens, expected {} (says {})", path.string(),
                                    num_tokens, tokens, side_file.filename().string()));
    }
    require(vocabulary <= vocab_size,
            "token file {} was written with a vocabulary of {} (says {}), more than model.vocab_size ({})",
            path.string(), vocabulary, side_file.filename().string(), vocab_size);
  } catch (const nlohmann::json::exception& problem) {
    throw CorruptData(fmt::format("{}: {}", side_file.string(), problem.what()));
  }
}

}  // namespace

TokenSource::TokenSource(const fs::path& path, TokenFormat format, std::int64_t vocab_size)
    : file_(open_regular(path)), vocab_size_(vocab_size), file_bytes_(file_.size()) {
  require(file_bytes_ > 0, "token file {} is empty", path.string());
  Element element = kElements[0];
  if (format == TokenFormat::kNpy) {
    const NpyTokens npy = inspect_npy(file_, file_bytes_);
    element = npy.element;
    data_offset_ = npy.offset;
    require(file_bytes_ > data_offset_, "token file {} is an empty array", path.string());
  } else {
    element = element_of(format);
    require(!is_npy(first_bytes(file_, kNpyPreludeBytes)),
            "token file {} is a .npy file; expected raw {} tokens, or data.format = \"npy\"", path.string(),
            element.name);
    require(file_bytes_ % element.bytes == 0,
            "token file {} has {} bytes, expected a multiple of {} (the size of a token)", path.string(),
            file_bytes_, element.bytes);
  }
  bytes_per_token_ = element.bytes;
  is_signed_ = element.is_signed;
  num_tokens_ = (file_bytes_ - data_offset_) / bytes_per_token_;
  check_side_file(path, element.name, num_tokens_, vocab_size);
}

void TokenSource::read(std::int64_t first, std::span<std::int64_t> tokens) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  require(first >= 0 && count <= num_tokens_ && first <= num_tokens_ - count,
          "token file {}: tokens {} to {} requested of {}", path().string(), first, first + count,
          num_tokens_);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * bytes_per_token_));
  try {
    file_.read_at(data_offset_ + first * bytes_per_token_, bytes);
  } catch (const CorruptData&) {
    throw CorruptData(fmt::format("token file {} has {} bytes, but had {} when the run began",
                                  path().string(), file_.size(), file_bytes_));
  }
  const auto unused_bits = static_cast<unsigned>(64 - 8 * bytes_per_token_);
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t raw = 0;
    for (std::int64_t byte = bytes_per_token_; byte-- > 0;) {
      raw = raw << 8 |
            std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(i * bytes_per_token_ + byte)]);
    }
    const auto token = is_signed_ ? static_cast<std::int64_t>(raw << unused_bits) >> unused_bits
                                  : static_cast<std::int64_t>(raw);
    if (token < 0 || token >= vocab_size_) {
      throw CorruptData(fmt::format(
          "token file {}: token {} has id {}, expected 0 to vocab_size ({}) - 1; is data.format right?",
          path().string(), first + i, token, vocab_size_));
    }
    tokens[static_cast<std::size_t>(i)] = token;
  }
}

}  // namespace moesaic
