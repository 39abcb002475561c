// weight_recorder.h: writes a weight trace (weight_trace.h) while a run goes on.
//
// Collective: every rank makes it and calls it, in the same order. Rank 0 brings together and writes, one
// unit in memory at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "moesaic/train/trainer.h"
#include "moesaic/train/weight_trace.h"

namespace moesaic {

class WeightRecorder {
 public:
  // `steps`: those to record, counted from 1, in any order. Goes on with the trace that `folder` (rank 0's)
  // holds, if any: images of the same step are replaced. InvalidArgument on every rank when that trace is of
  // another model; IoError when the folder cannot be made.
  WeightRecorder(Trainer& trainer, std::filesystem::path folder, std::vector<std::int64_t> steps);

  // Before step number `step` is made: records it, if it is one of the steps. An image is there in full or
  // not at all. IoError on every rank when rank 0 cannot write it.
  void before_step(std::int64_t step);

 private:
  void record(std::int64_t step);

  Trainer* trainer_;
  std::filesystem::path folder_;
  std::vector<std::int64_t> steps_;
  TraceIndex index_;  // of rank 0
};

}  // namespace moesaic
