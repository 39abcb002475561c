// corrupt.h: how the decoders refuse bytes.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "moesaic/core/error.h"

namespace moesaic::codec {

// check_bytes(ok, "expected {}, got {}", a, b): throws CorruptData when `ok` is false.
template <typename... Args>
void check_bytes(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) throw CorruptData(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace moesaic::codec
