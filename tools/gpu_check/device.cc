#include "tools/gpu_check/device.h"

#include <algorithm>
#include <cstdio>

#include "moesaic/core/error.h"

namespace moesaic::gpu_check {

void check(cudaError_t got, const char* what) {
  if (got != cudaSuccess) throw Error(fmt::format("{}: {}", what, cudaGetErrorString(got)));
}

double seconds_of(const std::function<void()>& launch) {
  constexpr int kWarmUp = 3, kRuns = 10;
  cudaEvent_t before, after;
  check(cudaEventCreate(&before), "cudaEventCreate");
  check(cudaEventCreate(&after), "cudaEventCreate");
  std::vector<double> seconds;
  for (int run = 0; run < kWarmUp + kRuns; ++run) {
    check(cudaEventRecord(before, nullptr), "cudaEventRecord");
    launch();
    check(cudaEventRecord(after, nullptr), "cudaEventRecord");
    check(cudaEventSynchronize(after), "kernels");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before, after), "cudaEventElapsedTime");
    if (run >= kWarmUp) seconds.push_back(milliseconds / 1e3);
  }
  cudaEventDestroy(before);
  cudaEventDestroy(after);
  std::ranges::nth_element(seconds, seconds.begin() + kRuns / 2);
  return seconds[kRuns / 2];
}

double copy_bandwidth() {
  static const double measured = [] {
    constexpr std::size_t kBytes = std::size_t{256} << 20;
    const OnDevice<std::uint8_t> from(kBytes), to(kBytes);
    return 2.0 * kBytes / seconds_of([&] {
             check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, nullptr),
                   "copy");
           });
  }();
  return measured;
}

void Report::expect(bool equal, const std::string& what) {
  ++comparisons_;
  if (equal) return;
  ++failures_;
  std::printf("DIFFERS  %s\n", what.c_str());
}

void Report::speed(const std::string& what, double bytes, const std::function<void()>& launch) {
  const double reached = bytes / seconds_of(launch);
  std::printf("%-44s %8.1f GB/s  %5.3f of a copy's %.1f\n", what.c_str(), reached / 1e9,
              reached / copy_bandwidth(), copy_bandwidth() / 1e9);
}

}  // namespace moesaic::gpu_check
