// split.h: share out `count` things over ranks in contiguous runs; the first ranks get one more. 8 on 3: 3, 3, 2.
#pragma once

#include <algorithm>
#include <cstdint>

namespace moesaic {

struct Split {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

inline Split split_evenly(std::int64_t count, int ranks, int rank) {
  const std::int64_t share = count / ranks, extra = count % ranks;
  const std::int64_t begin = rank * share + std::min<std::int64_t>(rank, extra);
  return {begin, begin + share + (rank < extra ? 1 : 0)};
}

}  // namespace moesaic
