// stopwatch.h: times that all ranks know.
#pragma once

#include <chrono>

#include "moesaic/comm/communicator.h"

namespace moesaic {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  Clock::time_point start_ = Clock::now();
};

// Collective: the largest of the ranks' values. It waits for all, so it serves as a barrier, too.
double slowest(Communicator& world, double value);

}  // namespace moesaic
