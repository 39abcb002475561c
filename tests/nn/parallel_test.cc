#include "moesaic/nn/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace moesaic {
namespace {

TEST(RunTasks, CallsEveryTaskOnce) {
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    for (const std::int64_t n : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
      run_tasks(n, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      for (const auto& count : calls) EXPECT_EQ(count, 1);
    }
  }
}

TEST(RunTasks, RunsAsManyAtOnceAsTorchHasThreads) {
  at::set_num_threads(2);
  std::atomic<int> arrived{0};
  bool met[2] = {};
  run_tasks(2, [&](std::int64_t i) {
    ++arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    met[i] = arrived == 2;
  });
  EXPECT_TRUE(met[0] && met[1]);
}

TEST(RunTasks, LetsOneExceptionOutOnceAllThreadsHaveStopped) {
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    std::atomic<int> running{0};
    EXPECT_THROW(run_tasks(50,
                           [&](std::int64_t i) {
                             ++running;
                             if (i >= 3) {
                               --running;
                               throw std::runtime_error("task");
                             }
                             --running;
                           }),
                 std::runtime_error);
    EXPECT_EQ(running, 0);
  }
}

}  // namespace
}  // namespace moesaic
