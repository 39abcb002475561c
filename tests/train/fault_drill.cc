// A training run that meets a fault at a given place, ends as the command line would, and says so the same
// way; test_fault_drills.py looks at how. Threads, or processes under mpirun.
//
// Usage: fault_drill CONFIG RUN_DIR ACTION RANK STEP PHASE [NAME]
// In step STEP (from 1), before the first span of PHASE (called NAME) on RANK: ACTION is kill (SIGKILL) or
// stop (SIGSTOP) of this process, throw (an exception leaves from there), or stall (six seconds of silence).
#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "moesaic/cli/launch.h"
#include "moesaic/core/trace.h"
#include "moesaic/train/run.h"

namespace {

using namespace moesaic;

constexpr int kChannel = 8;  // one that the trainer does not use

struct Drill {
  std::string_view action;
  int rank;
  int step;
  std::string_view phase, name;
};

class Fault final : public Tracer {
 public:
  explicit Fault(const Drill& drill) : drill_(drill) {}

  void begin(const SpanInfo& span) override {
    if (span.phase == Phase::kStep) ++steps_;
    const bool here = steps_ == drill_.step && name_of(span.phase) == drill_.phase && !span.waiting &&
                      (drill_.name.empty() || drill_.name == span.name);
    if (!here || met_.exchange(true)) return;
    if (drill_.action == "kill") std::raise(SIGKILL);
    if (drill_.action == "stop") std::raise(SIGSTOP);
    if (drill_.action == "stall") std::this_thread::sleep_for(std::chrono::seconds(6));
    if (drill_.action == "throw")
      throw std::runtime_error(fmt::format("a fault put into {} {}", drill_.phase, span.name));
  }
  void end(const SpanInfo&) noexcept override {}
  bool met() const { return met_; }

 private:
  const Drill drill_;
  std::atomic<int> steps_ = 0;
  std::atomic<bool> met_ = false;
};

void train(Communicator& world, const Config& config, const char* run_dir, const Drill& drill) {
  Fault fault(drill);
  const bool has_it = world.rank() == drill.rank;
  Communicator watched = world.split_all(kChannel, {.tracer = has_it ? &fault : nullptr});
  const RunLock lock(watched, run_dir);
  Trainer trainer(config, watched);
  trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
  run_training(trainer, run_dir, {});
  if (has_it && !fault.met()) fmt::print(stderr, "the drill was not met\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const Drill drill{argv[3], std::atoi(argv[4]), std::atoi(argv[5]), argv[6], argc > 7 ? argv[7] : ""};
  try {
    const Config config = load_config(argv[1]);
    cli::launch(config, [&](Communicator& world) { train(world, config, argv[2], drill); });
  } catch (const std::exception& error) {
    fmt::print(stderr, "moesaic: error: {}\n", error.what());
    return 1;
  }
  return 0;
}
