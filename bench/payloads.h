// payloads.h: what collectives carry when they are timed: uneven parts of small integers, exact in bf16, so
// that sums are exact and a wrong order shows.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

namespace moesaic::bench {

// What rank `from` has for rank `to` at position i.
inline float payload(int from, int to, std::int64_t i) {
  return static_cast<float>((i + 3 * from + 7 * to) % 61);
}

// Elements of each rank's part: `mean` on average of an even number of ranks.
inline std::vector<std::int64_t> uneven_parts(int size, std::int64_t mean) {
  std::vector<std::int64_t> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(mean + (rank % 2 ? 1 : -1) * mean / 8);
  return parts;
}

inline std::int64_t total(const std::vector<std::int64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
}

}  // namespace moesaic::bench
