// A tracer travels with a communicator: who is told of which operation, on which lane, and before it begins.
#include "moesaic/core/trace.h"

#include <gtest/gtest.h>

#include <array>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "tests/comm/worlds.h"

namespace moesaic {
namespace {

// "phase name lane" of every span, waits left out.
class Recorder final : public Tracer {
 public:
  void begin(const SpanInfo& span) override {
    const std::lock_guard lock(mutex_);
    if (!span.waiting) begun.push_back(describe_span(span));
    ++open;
  }
  void end(const SpanInfo&) noexcept override {
    const std::lock_guard lock(mutex_);
    --open;
  }
  std::vector<std::string> begun;
  int open = 0;

 private:
  static std::string describe_span(const SpanInfo& span) {
    return fmt::format("{} {} {}", name_of(span.phase), span.name, span.lane);
  }
  std::mutex mutex_;
};

class Refuser final : public Tracer {
 public:
  void begin(const SpanInfo& span) override {
    if (span.phase == Phase::kGather) throw std::runtime_error("refused");
  }
  void end(const SpanInfo& span) noexcept override { ended_gather |= span.phase == Phase::kGather; }
  bool ended_gather = false;
};

constexpr std::array<std::int64_t, 2> kBytes = {4, 4};

TEST(Trace, GroupsTellTheTracerOfTheWorldTheyWereSplitFrom) {
  run_world(Topology::one_node(2), [](Communicator& plain) {
    Recorder recorder;
    const Communicator world = plain.split_all(7, {.tracer = &recorder});
    Communicator group = world.split_all(1, {.phase = Phase::kGather, .lane = "gather"});
    EXPECT_EQ(plain.tracer(), nullptr);
    std::array<std::byte, 4> mine{};
    std::array<std::byte, 8> all{};
    barrier(plain);
    barrier(group);
    start_all_gather_v(group, mine, kBytes, all, {}, "a unit").wait();
    EXPECT_EQ(recorder.begun, (std::vector<std::string>{"gather barrier compute", "gather a unit gather"}));
    EXPECT_EQ(recorder.open, 0);
  });
}

TEST(Trace, ATracerThatThrowsKeepsTheWorkFromBeginning) {
  run_world(Topology::one_node(2), [](Communicator& plain) {
    Refuser refuser;
    Communicator group = plain.split_all(1, {.tracer = &refuser, .phase = Phase::kGather, .lane = "gather"});
    std::array<std::byte, 4> mine{};
    std::array<std::byte, 8> all{};
    EXPECT_THROW(barrier(group), std::runtime_error);
    Pending pending = start_all_gather_v(group, mine, kBytes, all);
    EXPECT_THROW(pending.wait(), std::runtime_error);
    EXPECT_EQ(group.traffic().messages, 0);
    EXPECT_FALSE(refuser.ended_gather);
  });
}

}  // namespace
}  // namespace moesaic
