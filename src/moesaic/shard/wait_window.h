// wait_window.h: how long what is on its way could take before this rank stood still for it.
//
// The window of one thing is open from when it was started until somebody first waits for it. Of several in a
// step the shortest counts: what one leaves of its window is of no use to the others.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

#include "moesaic/comm/transport.h"

namespace moesaic {

class WaitWindow {
 public:
  void open() {
    opened_ = Clock::now();
    is_open_ = true;
  }
  void close() {
    if (!is_open_) return;
    is_open_ = false;
    ++count_;
    shortest_ = std::min(shortest_, std::chrono::duration<double>(Clock::now() - opened_).count());
  }

  // Seconds: as many of the shortest as there were since the last call; 0 without any.
  double take() {
    const double seconds = count_ == 0 ? 0 : count_ * shortest_;
    count_ = 0;
    shortest_ = std::numeric_limits<double>::infinity();
    return seconds;
  }

 private:
  Clock::time_point opened_;
  bool is_open_ = false;
  int count_ = 0;
  double shortest_ = std::numeric_limits<double>::infinity();
};

}  // namespace moesaic
