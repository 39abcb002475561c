// trace.h: what a rank is doing, told as it happens to whoever wants to know.
//
// A Tracer hears of the begin and the end of spans: a stage's forward, a gather in the background, the time a
// thread stands still for a message. It travels with the Communicator, so every room reaches it and there is
// no global state. Spans of one thread nest. A missing tracer costs a test of a pointer.
//
// Local. A tracer belongs to one rank and is called from several threads of it at once.
#pragma once

#include <string_view>

namespace moesaic {

enum class Phase {
  kData,       // reading tokens
  kForward,    // a stage, its exchange included
  kBackward,   // the same
  kRecompute,  // forward again, for the backward pass
  kGather,     // parameters
  kReduce,     // gradients
  kExchange,   // tokens to their experts and back
  kCounts,     // what all ranks' routers chose
  kControl,    // other small messages: agreement, losses, barriers
  kNorm,       // global gradient norm
  kOptimizer,
  kEvaluate,
  kSave,
  kStep,  // a whole optimizer step: all of the above but evaluating and saving lie in it
};
inline constexpr int kNumPhases = static_cast<int>(Phase::kStep) + 1;

constexpr std::string_view name_of(Phase phase) {
  constexpr std::string_view kNames[kNumPhases] = {"data",      "forward",  "backward", "recompute", "gather",
                                                   "reduce",    "exchange", "counts",   "control",   "norm",
                                                   "optimizer", "evaluate", "save",     "step"};
  return kNames[static_cast<int>(phase)];
}

// The thread that runs the model. Others are called after the communicator whose background they are.
inline constexpr std::string_view kComputeLane = "compute";

struct SpanInfo {
  Phase phase;
  std::string_view name;  // "layer", "dispatch", a unit's name, ...; lives until the span has ended
  int index = -1;         // which one of that name; -1: the only one
  std::string_view lane = kComputeLane;
  bool waiting = false;  // this thread stands still for a message, or for another thread
};

class Tracer {
 public:
  virtual ~Tracer() = default;
  // Before the work begins. What it throws leaves from where the work would have begun, which then neither
  // begins nor ends.
  virtual void begin(const SpanInfo& span) = 0;
  virtual void end(const SpanInfo& span) noexcept = 0;
};

// A span as long as the scope it is declared in. `tracer` may be null.
class Span {
 public:
  Span(Tracer* tracer, const SpanInfo& info) : tracer_(tracer), info_(info) {
    if (tracer_ != nullptr) tracer_->begin(info_);
  }
  ~Span() {
    if (tracer_ != nullptr) tracer_->end(info_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Tracer* tracer_;
  SpanInfo info_;
};

}  // namespace moesaic
