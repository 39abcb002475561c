// device.h: the device's memory and clock, and what every check reports.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace moesaic::gpu_check {

// Throws Error with what CUDA says.
void check(cudaError_t got, const char* what);

// n elements of the device's memory, as a copy of the host's or filled with bytes that no result has.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t n) : size_(n) {
    if (n == 0) return;
    check(cudaMalloc(&data_, n * sizeof(T)), "cudaMalloc");
    check(cudaMemset(data_, 0xcd, n * sizeof(T)), "cudaMemset");
  }
  explicit OnDevice(std::span<const T> host) : OnDevice(host.size()) {
    if (size_ > 0)
      check(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy to device");
  }
  explicit OnDevice(const std::vector<T>& host) : OnDevice(std::span<const T>(host)) {}
  ~OnDevice() { cudaFree(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> copy(size_);
    check(cudaDeviceSynchronize(), "kernels");
    if (size_ > 0)
      check(cudaMemcpy(copy.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy to host");
    return copy;
  }

 private:
  std::size_t size_ = 0;
  void* data_ = nullptr;
};

// Median seconds of ten runs, after three to warm up.
double seconds_of(const std::function<void()>& launch);

// Bytes read and written per second by a copy from device to device; measured once.
double copy_bandwidth();

// Results, printed as they come.
class Report {
 public:
  // One comparison; prints where it fails.
  void expect(bool equal, const std::string& what);
  // A kernel's speed: `bytes` that it must read and write.
  void speed(const std::string& what, double bytes, const std::function<void()>& launch);
  int failures() const { return failures_; }
  int comparisons() const { return comparisons_; }

 private:
  int failures_ = 0, comparisons_ = 0;
};

void check_kernels(Report& report);
void check_codec(Report& report);

}  // namespace moesaic::gpu_check
