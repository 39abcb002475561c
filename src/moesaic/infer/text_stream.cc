#include "moesaic/infer/text_stream.h"

#include <utility>

namespace moesaic {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

}  // namespace

// Unicode 15, table 3-7: no overlong forms, no surrogates, nothing past U+10FFFF.
std::string TextStream::add(std::uint8_t byte) {
  if (missing_ > 0 && byte >= low_ && byte <= high_) {
    low_ = 0x80;
    high_ = 0xBF;
    pending_ += static_cast<char>(byte);
    if (--missing_ > 0) return {};
    return std::exchange(pending_, {});
  }
  std::string out = finish();
  if (byte < 0x80) return out + static_cast<char>(byte);
  if (byte < 0xC2 || byte > 0xF4) return out + kReplacement;
  missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  if (byte == 0xE0) low_ = 0xA0;
  if (byte == 0xED) high_ = 0x9F;
  if (byte == 0xF0) low_ = 0x90;
  if (byte == 0xF4) high_ = 0x8F;
  pending_ = static_cast<char>(byte);
  return out;
}

std::string TextStream::finish() {
  const bool cut = missing_ > 0;
  pending_.clear();
  missing_ = 0;
  low_ = 0x80;
  high_ = 0xBF;
  return cut ? kReplacement : "";
}

}  // namespace moesaic
