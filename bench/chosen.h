// chosen.h: which parts of a benchmark the command line asks for.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "moesaic/core/error.h"

namespace moesaic::bench {

// `wanted` where something is; each must be one of `known`.
inline std::vector<std::string> chosen(const std::string& flag, const std::vector<std::string>& wanted,
                                       const std::vector<std::string>& known) {
  for (const std::string& one : wanted) {
    if (std::find(known.begin(), known.end(), one) == known.end()) {
      throw InvalidArgument(fmt::format("{} '{}': expected some of {}", flag, one, fmt::join(known, ", ")));
    }
  }
  return wanted.empty() ? known : wanted;
}

}  // namespace moesaic::bench
