// require_of_peer.h: CorruptData for what a peer says in a dispatch. Local.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "moesaic/core/error.h"

namespace moesaic {

// `peer`: world rank.
template <typename... Args>
void require_of_peer(bool ok, int peer, fmt::format_string<Args...> format, Args&&... args) {
  if (ok) return;
  throw CorruptData(
      fmt::format("dispatch: rank {} {}", peer, fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace moesaic
