// gpu_check: compares every GPU twin with its CPU oracle on the first GPU, over sizes from empty to large,
// and prints the bandwidth each reaches over that of a copy from device to device. Takes some minutes at
// most. Exit status: 0 all equal, 1 something differs, 77 there is no GPU.
#include <cstdio>
#include <exception>

#include "tools/gpu_check/device.h"

int main() {
  using namespace moesaic::gpu_check;
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::printf("gpu_check: skipped: no GPU here (%s)\n", cudaGetErrorString(found));
    return 77;
  }
  try {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    std::printf("gpu_check: %s, compute capability %d.%d\n", properties.name, properties.major,
                properties.minor);
    Report report;
    check_kernels(report);
    check_codec(report);
    std::printf("gpu_check: %d comparisons, %d differ\n", report.comparisons(), report.failures());
    return report.failures() == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("gpu_check: %s\n", error.what());
    return 1;
  }
}
