// sample.h: which words of a message are looked at to build its tables.
#pragma once

#include <algorithm>
#include <cstddef>

namespace moesaic::codec {

// Calls run(begin, end) for runs of words, evenly spread: all words where there are few, else about one in
// 64, and no more than a table can make use of.
template <typename Run>
void for_each_sampled_run(std::size_t words, const Run& run) {
  constexpr std::size_t kRun = 128, kFewest = 16384, kMost = 131072;
  const std::size_t wanted = std::clamp(words / 64, kFewest, kMost);
  const std::size_t stride = std::max(kRun, words / wanted * kRun);
  for (std::size_t begin = 0; begin < words; begin += stride) run(begin, std::min(begin + kRun, words));
}

}  // namespace moesaic::codec
