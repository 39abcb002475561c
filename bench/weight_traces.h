// weight_traces.h: weights that training recorded, for benchmarks of the codec and of gathers.
//
// The traces are made by `moesaic train --record-weights`, once: the demo model with 64 experts and top-4,
// 8,192 tokens a step, at lr 4e-4, and from its checkpoint on at 1e-5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace moesaic::bench {

constexpr int kTracedSteps = 5;  // in a row

struct RecordedStep {
  std::string name;              // "lr4e-4 step30"
  std::filesystem::path folder;  // of the trace (train/weight_trace.h)
  std::int64_t step = 0;         // in the trace, the last of kTracedSteps
};

// All of size "standard" or "tiny", in traces/size, recorded there unless they are: minutes of training.
// Throws Error where that holds traces of another recipe.
std::vector<RecordedStep> recorded_steps(const std::string& size, const std::filesystem::path& traces);

}  // namespace moesaic::bench
