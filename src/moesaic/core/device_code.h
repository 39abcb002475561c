// device_code.h: marks functions that run on a GPU, and on the CPU where a test plays the GPU.
//
// A GPU twin is written as tasks: a function of an index (one thread does it), or of a warp and an index (32
// threads do it together). nvcc compiles tasks into kernels (launch.cuh); the C++ compiler compiles the same
// lines into tests, which do the tasks one after the other (tests/core/host_warp.h).
//
// A task of a warp is written once for all lanes: `warp.each(f)` calls f(lane) for each lane, on a GPU side
// by side, so that inside one each() no lane may count on another. A local variable is the same for all
// lanes, an Each<T> has a T for each lane, and is read and written only inside each(). Lanes meet in
//   warp.ballot(bools)           the lanes that hold true, as bits
//   warp.match(numbers)          for each lane, the lanes that hold the same number, as bits
//   warp.shuffle(values, from)   for each lane, the value of lane from(lane)
//   warp.sync()                  before a lane reads memory that another lane wrote, or the other way round.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define MOESAIC_DEVICE __device__
#else
#define MOESAIC_DEVICE
#endif

namespace moesaic {

inline constexpr unsigned kWarpLanes = 32;

template <class Warp, class T>
using Each = typename Warp::template Each<T>;

// Lanes before, and after, a lane, as bits.
constexpr std::uint32_t lanes_below(unsigned lane) { return (1u << lane) - 1; }
constexpr std::uint32_t lanes_above(unsigned lane) { return ~0u << lane << 1; }
constexpr unsigned count_lanes(std::uint32_t lanes) { return static_cast<unsigned>(std::popcount(lanes)); }

// A row of elements that one thread reads or writes at once, 16 bytes where rows allow it.
template <class T, int kElements>
struct alignas(sizeof(T) * kElements) Pack {
  T at[kElements];
};

template <class T, int kElements>
MOESAIC_DEVICE inline Pack<T, kElements> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kElements>*>(from);
}
template <class T, int kElements>
MOESAIC_DEVICE inline void store_pack(T* to, const Pack<T, kElements>& pack) {
  *reinterpret_cast<Pack<T, kElements>*>(to) = pack;
}

// Whether rows of `width` elements, from these addresses on, are whole packs of 16 bytes.
template <class T, class... Pointers>
bool whole_packs(std::int64_t width, const Pointers*... rows) {
  return width % static_cast<std::int64_t>(16 / sizeof(T)) == 0 &&
         ((reinterpret_cast<std::uintptr_t>(rows) % 16 == 0) && ...);
}

}  // namespace moesaic
