// phase_clock.h: how a rank spent its time, by phase, from the spans it goes through.
//
// Local, thread-safe. A span's time is its own: what spans inside it took is taken off. So on the compute
// thread the phases of a step add up to the step. Other threads run beside it; theirs are counted apart.
#pragma once

#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "moesaic/core/trace.h"

namespace moesaic {

// Seconds, by phase.
struct PhaseTimes {
  std::array<double, kNumPhases> working{};     // compute thread
  std::array<double, kNumPhases> waiting{};     // compute thread, standing still
  std::array<double, kNumPhases> background{};  // all other threads

  double of(Phase phase) const {
    return working[static_cast<std::size_t>(phase)] + waiting[static_cast<std::size_t>(phase)];
  }
  // Communication that the compute thread stood still for, and background communication that it did not.
  double exposed() const;
  double hidden() const;
};

PhaseTimes operator-(const PhaseTimes& a, const PhaseTimes& b);

class PhaseClock final : public Tracer {
 public:
  // Tells `next` (may be null) of every span too.
  explicit PhaseClock(Tracer* next) : next_(next) {}

  void begin(const SpanInfo& span) override;
  void end(const SpanInfo& span) noexcept override;

  // Since this was made. Spans still open do not count yet.
  PhaseTimes times() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    Clock::time_point begin;
    double inside = 0;  // seconds of the spans in it
  };
  // Open spans of one lane, innermost last. A lane is a thread.
  struct Lane {
    std::string name;
    std::vector<Open> open;
  };
  Lane& lane_of(const SpanInfo& span);

  Tracer* next_;
  mutable std::mutex mutex_;
  std::vector<Lane> lanes_;
  PhaseTimes times_;
};

}  // namespace moesaic
