#include "moesaic/core/json.h"

#include <set>
#include <string>
#include <vector>

#include "moesaic/core/error.h"

namespace moesaic {

nlohmann::json parse_json(std::string_view text, std::string_view source, int max_depth) {
  using Json = nlohmann::json;
  // nlohmann takes a NUL for the end of the text and skips a byte-order mark.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw CorruptData(fmt::format("{}: NUL byte at {} of the JSON text", source, nul));
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    throw CorruptData(fmt::format("{}: JSON text starts with a byte-order mark", source));
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= max_depth) {
          throw CorruptData(fmt::format("{}: JSON is nested more than {} deep", source, max_depth));
        }
        if (event == Json::parse_event_t::object_start) keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second) {
          throw CorruptData(fmt::format("{}: duplicate JSON key '{}'", source, parsed.get<std::string>()));
        }
        break;
      default:
        break;
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("{}: {}", source, error.what()));
  }
}

}  // namespace moesaic
