// host_warp.h: a warp of device_code.h played by one thread, so that tests run what a GPU runs.
//
// Lanes go one after the other, first to last or last to first: a task that lets a lane count on another
// inside one each() gives different results for the two orders.
#pragma once

#include <array>
#include <cstdint>

#include "moesaic/core/device_code.h"

namespace moesaic {

struct HostWarp {
  template <class T>
  struct Each {
    std::array<T, kWarpLanes> values{};
    T& operator[](unsigned lane) { return values.at(lane); }
    const T& operator[](unsigned lane) const { return values.at(lane); }
  };

  bool backwards = false;

  template <class Function>
  void each(const Function& function) const {
    for (unsigned i = 0; i < kWarpLanes; ++i) function(backwards ? kWarpLanes - 1 - i : i);
  }
  std::uint32_t ballot(const Each<bool>& values) const {
    std::uint32_t lanes = 0;
    for (unsigned lane = 0; lane < kWarpLanes; ++lane) lanes |= std::uint32_t{values[lane]} << lane;
    return lanes;
  }
  Each<std::uint32_t> match(const Each<std::int32_t>& values) const {
    Each<std::uint32_t> same;
    for (unsigned lane = 0; lane < kWarpLanes; ++lane) {
      for (unsigned other = 0; other < kWarpLanes; ++other) {
        same[lane] |= std::uint32_t{values[lane] == values[other]} << other;
      }
    }
    return same;
  }
  template <class T, class Source>
  Each<T> shuffle(const Each<T>& values, const Source& from) const {
    Each<T> result;
    for (unsigned lane = 0; lane < kWarpLanes; ++lane) result[lane] = values[from(lane) % kWarpLanes];
    return result;
  }
  void sync() const {}
};

// Does the tasks as launch.cuh would, in either order of lanes and tasks.
template <class Task>
void run_warps(bool backwards, std::int64_t tasks, const Task& task) {
  const HostWarp warp{backwards};
  for (std::int64_t i = 0; i < tasks; ++i) task(warp, backwards ? tasks - 1 - i : i);
}

template <class Task>
void run_threads(bool backwards, std::int64_t tasks, const Task& task) {
  for (std::int64_t i = 0; i < tasks; ++i) task(backwards ? tasks - 1 - i : i);
}

}  // namespace moesaic
