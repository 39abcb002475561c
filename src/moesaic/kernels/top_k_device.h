// top_k_device.h: top_k.h for one row, by a warp.
#pragma once

#include <cstdint>
#include <limits>

#include "moesaic/core/device_code.h"

namespace moesaic::kernels {

struct Scored {
  float score;
  std::int32_t id;
};

// The order of a row's result: larger scores first, of equal ones the lowest index.
constexpr bool goes_before(Scored a, Scored b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

// k rounds; each finds what goes first of all that goes after the last one found. A row is read k times, out
// of the cache nearest to the cores but for the first time.
struct TopKOfRow {
  const float* scores;
  std::int64_t n, k;
  std::int32_t* ids;
  float* values;

  template <class Warp>
  MOESAIC_DEVICE void operator()(const Warp& warp, std::int64_t row) const {
    constexpr Scored kNothing = {-std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<std::int32_t>::max()};
    const float* from = scores + row * n;
    Scored last = kNothing;
    for (std::int64_t j = 0; j < k; ++j) {
      Each<Warp, Scored> best;
      warp.each([&](unsigned lane) {
        best[lane] = kNothing;
        for (std::int64_t i = lane; i < n; i += kWarpLanes) {
          const Scored candidate = {from[i], static_cast<std::int32_t>(i)};
          const bool left = j == 0 || goes_before(last, candidate);
          if (left && goes_before(candidate, best[lane])) best[lane] = candidate;
        }
      });
      for (unsigned step = kWarpLanes / 2; step > 0; step /= 2) {
        const auto other = warp.shuffle(best, [step](unsigned lane) { return lane ^ step; });
        warp.each([&](unsigned lane) {
          if (goes_before(other[lane], best[lane])) best[lane] = other[lane];
        });
      }
      warp.each([&](unsigned lane) {
        last = best[lane];  // all lanes hold the same one
        if (lane != 0) return;
        ids[row * k + j] = last.id;
        values[row * k + j] = last.score;
      });
    }
  }
};

}  // namespace moesaic::kernels
