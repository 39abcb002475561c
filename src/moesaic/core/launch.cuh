// launch.cuh: runs tasks (device_code.h) as kernels on a stream.
//
// For .cu files. A task is copied to the device by value and holds device pointers only. Nothing is launched
// for 0 tasks. Calls return at once; what a kernel does wrong shows at the stream's next synchronisation.
// Errors: Error when a launch or an allocation is refused.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "moesaic/core/device.h"
#include "moesaic/core/device_code.h"
#include "moesaic/core/device_error.h"

namespace moesaic {

inline constexpr unsigned kBlockThreads = 256;

struct GpuWarp {
  static constexpr unsigned kAll = 0xffffffffu;

  template <class T>
  struct Each {
    T value;
    __device__ T& operator[](unsigned) { return value; }
    __device__ const T& operator[](unsigned) const { return value; }
  };

  unsigned lane;

  template <class Function>
  __device__ void each(const Function& function) const {
    function(lane);
  }
  __device__ std::uint32_t ballot(const Each<bool>& values) const {
    return __ballot_sync(kAll, values.value);
  }
  __device__ Each<std::uint32_t> match(const Each<std::int32_t>& values) const {
    return {__match_any_sync(kAll, values.value)};
  }
  template <class T, class Source>
  __device__ Each<T> shuffle(const Each<T>& values, const Source& from) const {
    static_assert(sizeof(T) % sizeof(std::uint32_t) == 0);
    constexpr std::size_t kParts = sizeof(T) / sizeof(std::uint32_t);
    std::uint32_t parts[kParts];
    memcpy(parts, &values.value, sizeof(T));
    for (std::size_t i = 0; i < kParts; ++i)
      parts[i] = __shfl_sync(kAll, parts[i], static_cast<int>(from(lane)));
    Each<T> result;
    memcpy(&result.value, parts, sizeof(T));
    return result;
  }
  __device__ void sync() const { __syncwarp(kAll); }
};

template <class Task>
__global__ void __launch_bounds__(kBlockThreads) run_threads(std::int64_t tasks, Task task) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tasks; i += stride) task(i);
}

template <class Task>
__global__ void __launch_bounds__(kBlockThreads) run_warps(std::int64_t tasks, Task task) {
  constexpr unsigned kWarps = kBlockThreads / kWarpLanes;
  const GpuWarp warp{threadIdx.x % kWarpLanes};
  const std::int64_t stride = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes; i < tasks;
       i += stride) {
    task(warp, i);
  }
}

inline void check_cuda(cudaError_t got, const char* what) {
  if (got != cudaSuccess) throw_device_error(what, cudaGetErrorString(got));
}

inline unsigned blocks_for(std::int64_t tasks, std::int64_t tasks_per_block) {
  constexpr std::int64_t kMostBlocks = 65536;  // a grid's threads go on to further tasks
  const std::int64_t blocks = (tasks + tasks_per_block - 1) / tasks_per_block;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

inline cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

template <class Task>
void launch_threads(const char* what, Stream stream, std::int64_t tasks, const Task& task) {
  if (tasks <= 0) return;
  run_threads<<<blocks_for(tasks, kBlockThreads), kBlockThreads, 0, stream_of(stream)>>>(tasks, task);
  check_cuda(cudaGetLastError(), what);
}

template <class Task>
void launch_warps(const char* what, Stream stream, std::int64_t tasks, const Task& task) {
  if (tasks <= 0) return;
  run_warps<<<blocks_for(tasks, kBlockThreads / kWarpLanes), kBlockThreads, 0, stream_of(stream)>>>(tasks,
                                                                                                    task);
  check_cuda(cudaGetLastError(), what);
}

// Device memory between two kernels of a stream: taken and given back in the stream's order.
template <class T>
class StreamBuffer {
 public:
  StreamBuffer(std::int64_t elements, Stream stream) : stream_(stream) {
    if (elements <= 0) return;
    void* data = nullptr;
    const auto bytes = static_cast<std::size_t>(elements) * sizeof(T);
    check_cuda(cudaMallocAsync(&data, bytes, stream_of(stream)), "memory on the device");
    data_ = static_cast<T*>(data);
  }
  ~StreamBuffer() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_of(stream_));
  }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  T* data() const { return data_; }

 private:
  Stream stream_;
  T* data_ = nullptr;
};

}  // namespace moesaic
