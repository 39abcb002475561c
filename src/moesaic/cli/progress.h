// progress.h: one line that moves while training runs; nothing at all when stderr is not a terminal.
#pragma once

#include <cstdint>

#include "moesaic/train/trainer.h"

namespace moesaic::cli {

class ProgressBar {
 public:
  // Steps first..last (counted from 1) will be shown, of a job on `num_nodes` nodes.
  ProgressBar(std::int64_t first, std::int64_t last, int num_nodes);
  ~ProgressBar();  // leaves the last line standing
  void show(const StepReport& report);

 private:
  std::int64_t first_, last_;
  int num_nodes_;
  bool terminal_;
  double seconds_ = 0;
};

}  // namespace moesaic::cli
