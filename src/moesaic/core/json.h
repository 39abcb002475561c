// json.h: strict JSON for files from elsewhere. Included by sources only: nlohmann's header is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace moesaic {

// CorruptData naming `source` for anything RFC 8259 leaves open or forbids: syntax errors, text after the
// value, NUL bytes, a byte-order mark, invalid UTF-8, duplicate keys, more than `max_depth` nested arrays and
// objects.
nlohmann::json parse_json(std::string_view text, std::string_view source, int max_depth);

}  // namespace moesaic
