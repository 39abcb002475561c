// device.h: where memory lives, and the queue that work on it is ordered by.
//
// The CPU is the first device, not the only one: kernels take a Stream so that a GPU twin fits behind
// the same interface. On the CPU a Stream is empty and every kernel has finished when it returns.
#pragma once

namespace moesaic {

struct Stream {
  void* handle = nullptr;  // a cudaStream_t on a GPU
};

}  // namespace moesaic
