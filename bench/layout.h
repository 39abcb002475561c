// layout.h: how many hosts a cluster has and how many ranks run on each: "4x2".
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "moesaic/core/error.h"

namespace moesaic::bench {

struct Layout {
  int hosts = 0, ranks_per_host = 0;
  int ranks() const { return hosts * ranks_per_host; }
};

inline Layout layout_of(const std::string& text) {
  Layout layout;
  char end = 0;
  if (std::sscanf(text.c_str(), "%dx%d%c", &layout.hosts, &layout.ranks_per_host, &end) != 2 ||
      layout.hosts < 1 || layout.ranks_per_host < 1) {
    throw InvalidArgument(fmt::format("--layouts '{}': expected HOSTSxRANKS_PER_HOST, such as 4x2", text));
  }
  return layout;
}

}  // namespace moesaic::bench
