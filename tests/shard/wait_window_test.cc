#include "moesaic/shard/wait_window.h"

#include <gtest/gtest.h>

#include <thread>

namespace moesaic {
namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Sleeps at least so long.
void pass(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

TEST(WaitWindow, IsNothingWhereNothingWasWaitedFor) {
  WaitWindow window;
  EXPECT_EQ(window.take(), 0);
  window.open();
  EXPECT_EQ(window.take(), 0);
}

TEST(WaitWindow, ClosesWhenSomebodyFirstWaits) {
  WaitWindow window;
  const auto start = Clock::now();
  window.open();
  pass(2);
  window.close();
  const double until = seconds_since(start);
  pass(5);
  window.close();
  const double seconds = window.take();
  EXPECT_GE(seconds, 0.002);
  EXPECT_LE(seconds, until);
  EXPECT_EQ(window.take(), 0);  // of a new step
}

TEST(WaitWindow, CountsTheShortestForAll) {
  WaitWindow window;
  double shortest = 0;
  for (const int milliseconds : {20, 0, 20}) {
    const auto start = Clock::now();
    window.open();
    pass(milliseconds);
    window.close();
    if (milliseconds == 0) shortest = seconds_since(start);
  }
  EXPECT_LE(window.take(), 3 * shortest);
}

}  // namespace
}  // namespace moesaic
