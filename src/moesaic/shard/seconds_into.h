// seconds_into.h: adds the seconds a block of code took to a counter.
#pragma once

#include <chrono>

#include "moesaic/comm/transport.h"

namespace moesaic {

class SecondsInto {
 public:
  explicit SecondsInto(double& total) : total_(total), start_(Clock::now()) {}
  ~SecondsInto() { total_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  SecondsInto(const SecondsInto&) = delete;
  SecondsInto& operator=(const SecondsInto&) = delete;

 private:
  double& total_;
  Clock::time_point start_;
};

}  // namespace moesaic
