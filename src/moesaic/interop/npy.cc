#include "moesaic/interop/npy.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "moesaic/core/error.h"

namespace moesaic {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::int64_t kLongestHeader = 1 << 20;  // one-dimensional arrays need about a hundred bytes

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The header is a Python dictionary of three known keys: {'descr': '<u2', 'fortran_order': False, 'shape':
// (5,), }
class DictionaryParser {
 public:
  DictionaryParser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  NpyHeader parse() {
    NpyHeader header;
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        once(key, descr);
        header.descr = string();
      } else if (key == "fortran_order") {
        once(key, order);
        header.fortran_order = boolean();
      } else if (key == "shape") {
        once(key, shape);
        header.shape = tuple();
      } else {
        fail(fmt::format("key '{}', expected 'descr', 'fortran_order' and 'shape'", key));
      }
      if (accept(',')) continue;
      expect('}');
      break;
    }
    skip_spaces();
    if (at_ != text_.size()) fail(fmt::format("text after the dictionary at {}", at_));
    if (!descr || !order || !shape) fail("no 'descr', no 'fortran_order' or no 'shape'");
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptData(fmt::format("{}: the .npy header has {}", source_, what));
  }

  void once(const std::string& key, bool& seen) const {
    if (seen) fail(fmt::format("'{}' twice", key));
    seen = true;
  }

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (accept(c)) return;
    fail(at_ >= text_.size() ? fmt::format("its end where '{}' is due", c)
                             : fmt::format("byte 0x{:02x} at {}, expected '{}'",
                                           static_cast<unsigned char>(text_[at_]), at_, c));
  }

  std::string string() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const std::size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) fail("a string without an end");
    std::string value(text_.substr(at_, end - at_));
    const bool plain = std::ranges::all_of(value, [](char c) { return c >= ' ' && c <= '~' && c != '\\'; });
    if (!plain) fail("a string with escapes or control characters");
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    fail("a 'fortran_order' that is neither True nor False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      std::int64_t value = 0;
      const char* end = text_.data() + text_.size();
      const auto parsed = std::from_chars(text_.data() + at_, end, value);
      if (parsed.ec != std::errc() || value < 0) fail("a 'shape' that is not a tuple of sizes");
      at_ = static_cast<std::size_t>(parsed.ptr - text_.data());
      values.push_back(value);
      if (accept(',')) continue;
      if (values.size() == 1) fail("a 'shape' that is a number, expected a tuple");
      expect(')');
      break;
    }
    return values;
  }

  std::string_view text_;
  std::string_view source_;
  std::size_t at_ = 0;
};

}  // namespace

bool is_npy(std::span<const std::byte> bytes) { return text_of(bytes).starts_with(kMagic); }

std::int64_t npy_data_offset(std::span<const std::byte> prelude, std::string_view source) {
  if (!is_npy(prelude)) {
    throw CorruptData(fmt::format("{} is no .npy file: it does not begin with \\x93NUMPY", source));
  }
  const auto byte = [&](std::size_t at) {
    if (at >= prelude.size()) {
      throw CorruptData(
          fmt::format("{} ends at byte {}, within the header of a .npy file", source, prelude.size()));
    }
    return std::to_integer<std::int64_t>(prelude[at]);
  };
  const std::int64_t major = byte(6), minor = byte(7);
  if (major < 1 || major > 3 || minor != 0) {
    throw CorruptData(
        fmt::format("{} has .npy format version {}.{}, expected 1.0, 2.0 or 3.0", source, major, minor));
  }
  std::int64_t length = byte(8) | byte(9) << 8, offset = 10;
  if (major > 1) {
    length |= byte(10) << 16 | byte(11) << 24;
    offset = 12;
  }
  if (length > kLongestHeader) {
    throw CorruptData(
        fmt::format("{} has a .npy header of {} bytes, expected at most {}", source, length, kLongestHeader));
  }
  return offset + length;
}

NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::string_view source) {
  const std::int64_t offset = npy_data_offset(bytes.first(std::min(bytes.size(), kNpyPreludeBytes)), source);
  if (std::ssize(bytes) < offset) {
    throw CorruptData(
        fmt::format("{} ends at byte {}, expected a .npy header of {} bytes", source, bytes.size(), offset));
  }
  const std::size_t prelude = bytes[6] == std::byte{1} ? 10 : 12;
  const std::string_view text = text_of(bytes).substr(prelude, static_cast<std::size_t>(offset) - prelude);
  NpyHeader header = DictionaryParser(text, source).parse();
  header.data_offset = offset;
  return header;
}

}  // namespace moesaic
