// rank_prefix.h: "rank N: " in front of a message, once.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace moesaic {

// `message` with "rank R: " before it, unless it begins with "rank N: " already: what all ranks agreed on
// names the rank it came from.
inline std::string with_rank(int rank, std::string_view message) {
  constexpr std::string_view kStart = "rank ";
  if (message.starts_with(kStart)) {
    const std::size_t end = message.find_first_not_of("0123456789", kStart.size());
    if (end > kStart.size() && message.substr(end).starts_with(": ")) return std::string(message);
  }
  return fmt::format("rank {}: {}", rank, message);
}

}  // namespace moesaic
