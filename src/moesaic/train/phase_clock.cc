#include "moesaic/train/phase_clock.h"

#include <algorithm>

namespace moesaic {

double PhaseTimes::exposed() const {
  double seconds = 0;
  for (const double waited : waiting) seconds += waited;
  return seconds;
}

double PhaseTimes::hidden() const {
  double seconds = 0;
  for (const Phase phase : {Phase::kGather, Phase::kReduce, Phase::kExchange}) {
    const auto p = static_cast<std::size_t>(phase);
    seconds += std::max(0.0, background[p] - waiting[p]);
  }
  return seconds;
}

PhaseTimes operator-(const PhaseTimes& a, const PhaseTimes& b) {
  PhaseTimes difference;
  for (std::size_t p = 0; p < std::size_t{kNumPhases}; ++p) {
    difference.working[p] = a.working[p] - b.working[p];
    difference.waiting[p] = a.waiting[p] - b.waiting[p];
    difference.background[p] = a.background[p] - b.background[p];
  }
  return difference;
}

// A linear search: lanes are few.
PhaseClock::Lane& PhaseClock::lane_of(const SpanInfo& span) {
  for (Lane& lane : lanes_) {
    if (lane.name == span.lane) return lane;
  }
  return lanes_.emplace_back(Lane{std::string(span.lane), {}});
}

void PhaseClock::begin(const SpanInfo& span) {
  if (next_ != nullptr) next_->begin(span);
  const std::lock_guard lock(mutex_);
  lane_of(span).open.push_back({Clock::now()});
}

void PhaseClock::end(const SpanInfo& span) noexcept {
  {
    const std::lock_guard lock(mutex_);
    std::vector<Open>& open = lane_of(span).open;
    const double all = std::chrono::duration<double>(Clock::now() - open.back().begin).count();
    const double own = all - open.back().inside;
    open.pop_back();
    if (!open.empty()) open.back().inside += all;
    const bool compute = span.lane == kComputeLane;
    auto& seconds = !compute ? times_.background : span.waiting ? times_.waiting : times_.working;
    seconds[static_cast<std::size_t>(span.phase)] += own;
  }
  if (next_ != nullptr) next_->end(span);
}

PhaseTimes PhaseClock::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

}  // namespace moesaic
