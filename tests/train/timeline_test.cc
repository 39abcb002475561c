// What a trainer tells about its time: phases that add up, and a timeline of some of its steps.
#include "moesaic/train/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "moesaic/core/file.h"
#include "moesaic/train/phase_clock.h"
#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

using Json = nlohmann::json;
using std::chrono::steady_clock;

constexpr int kTracerChannel = 8;

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

double sum(const std::array<double, kNumPhases>& seconds) {
  double total = 0;
  for (const double s : seconds) total += s;
  return total;
}

TEST(PhaseClock, NestedSpansShareTheTimeOfTheOuterOneAndNoneIsCountedTwice) {
  PhaseClock clock(nullptr);
  const auto outer = steady_clock::now();
  double inner = 0;
  {
    const Span step(&clock, {.phase = Phase::kStep, .name = "step"});
    const auto start = steady_clock::now();
    {
      const Span forward(&clock, {.phase = Phase::kForward, .name = "layer"});
      const Span wait(&clock, {.phase = Phase::kGather, .name = "unit", .waiting = true});
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    inner = seconds_since(start);
  }
  const double all = seconds_since(outer);
  const PhaseTimes times = clock.times();
  EXPECT_GE(sum(times.working) + sum(times.waiting), inner);
  EXPECT_LE(sum(times.working) + sum(times.waiting), all);
  EXPECT_GE(times.exposed(), 0.002);
  EXPECT_LT(times.of(Phase::kForward), times.exposed()) << "the wait inside is not the forward's own";
}

TEST(PhaseClock, OtherThreadsAreCountedApart) {
  PhaseClock clock(nullptr);
  { const Span job(&clock, {.phase = Phase::kReduce, .name = "unit", .lane = "reduce"}); }
  EXPECT_GT(clock.times().background[static_cast<std::size_t>(Phase::kReduce)], 0);
  EXPECT_EQ(sum(clock.times().working) + sum(clock.times().waiting), 0);
}

TEST(PhaseClock, HiddenIsTheBackgroundThatNobodyWaitedFor) {
  PhaseTimes times;
  times.background[static_cast<std::size_t>(Phase::kGather)] = 3;
  times.waiting[static_cast<std::size_t>(Phase::kGather)] = 1;
  times.background[static_cast<std::size_t>(Phase::kExchange)] = 6;
  times.waiting[static_cast<std::size_t>(Phase::kExchange)] = 5;
  EXPECT_EQ(times.hidden(), 2 + 1);
  EXPECT_EQ(times.exposed(), 6);
}

TEST(Trainer, ReportsWhatEveryRankDidOnRankZeroAndBytesByKind) {
  const TempFolder folder;
  const Config config =
      with_layout(small_config(write_text(folder.path())), {"", 4, {"exchange"}, 2, /*ranks_per_node=*/2});
  on_ranks(config, [](Trainer& trainer) {
    trainer.model().initialise(1);
    const StepReport report = trainer.step();
    for (const SentBytes& sent : {report.gather, report.reduce, report.exchange, report.control}) {
      EXPECT_GT(sent.total, 0);
      EXPECT_LE(sent.inter_node, sent.total);
    }
    // An exchange group of two ranks lies within a node; the gather of dense units does not.
    EXPECT_EQ(report.exchange.inter_node, 0);
    EXPECT_GT(report.gather.inter_node, 0);
    ASSERT_EQ(report.by_rank.size(), trainer.world().rank() == 0 ? 4u : 0u);
    for (const RankTimes& times : report.by_rank) {
      EXPECT_GT(times.phases.of(Phase::kForward), 0);
      EXPECT_GT(times.phases.of(Phase::kBackward), 0);
      EXPECT_GT(times.phases.background[static_cast<std::size_t>(Phase::kReduce)], 0);
      EXPECT_LE(sum(times.phases.working) + sum(times.phases.waiting), times.seconds);
    }
  });
}

// Does not let layer 0 begin `held` before `awaited` of layer 1 is on its way: were that started only when
// layer 0 is done, nobody would ever go on.
class HoldsLayerZero final : public Tracer {
 public:
  HoldsLayerZero(Phase held, Phase awaited) : held_(held), awaited_(awaited) {}

  void begin(const SpanInfo& span) override {
    std::unique_lock lock(mutex_);
    if (span.phase == awaited_ && span.lane != kComputeLane && span.name.starts_with("layers.1.")) {
      under_way_ = true;
      changed_.notify_all();
    }
    if (span.phase == held_ && span.name == "layer" && span.index == 0) {
      overlapped |= changed_.wait_for(lock, std::chrono::seconds(20), [&] { return under_way_; });
    }
  }
  void end(const SpanInfo&) noexcept override {}
  bool overlapped = false;

 private:
  Phase held_, awaited_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool under_way_ = false;
};

void expect_overlap(Phase held, Phase awaited) {
  const TempFolder folder;
  const Config config = with_layout(small_config(write_text(folder.path())), {"", 2, {"gather"}});
  run_world(Topology::one_node(2), [&](Communicator& world) {
    HoldsLayerZero tracer(held, awaited);
    Communicator traced = world.split_all(kTracerChannel, {.tracer = &tracer});
    Trainer trainer(config, traced);
    trainer.model().initialise(1);
    trainer.step();
    EXPECT_TRUE(tracer.overlapped);
  });
}

TEST(Trainer, GathersTheNextStageWhileOneComputes) { expect_overlap(Phase::kForward, Phase::kGather); }
TEST(Trainer, ReducesAStagesGradientsWhileTheOneBeforeRunsBackward) {
  expect_overlap(Phase::kBackward, Phase::kReduce);
}

struct Event {
  std::string name, category;
  double begin, end;
};

// The spans of one lane of one rank.
std::vector<Event> lane(const Json& trace, int rank, const std::string& lane_name) {
  int tid = -1;
  std::vector<Event> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["pid"] != rank) continue;
    if (event["name"] == "thread_name" && event["args"]["name"] == lane_name) tid = event["tid"];
  }
  for (const Json& event : trace["traceEvents"]) {
    if (event["pid"] != rank || event["ph"] != "X" || event["tid"] != tid) continue;
    const double begin = event["ts"], duration = event["dur"];
    events.push_back({event["name"], event["cat"], begin, begin + duration});
  }
  return events;
}

// Times are rounded to a nanosecond when written.
constexpr double kRounding = 0.0021;

void expect_nested(const std::vector<Event>& events) {
  for (const Event& a : events) {
    for (const Event& b : events) {
      const bool apart = a.end <= b.begin + kRounding || b.end <= a.begin + kRounding;
      const bool a_in_b = a.begin >= b.begin - kRounding && a.end <= b.end + kRounding;
      const bool b_in_a = b.begin >= a.begin - kRounding && b.end <= a.end + kRounding;
      EXPECT_TRUE(apart || a_in_b || b_in_a) << a.name << " and " << b.name << " cross";
    }
  }
}

int count(const std::vector<Event>& events, const std::string& name) {
  return static_cast<int>(std::ranges::count(events, name, &Event::name));
}

// Spans of that name that lie in no other of that name, nor in one called `except`.
int outermost(const std::vector<Event>& events, const std::string& name, const std::string& except) {
  return static_cast<int>(std::ranges::count_if(events, [&](const Event& span) {
    return span.name == name && std::ranges::none_of(events, [&](const Event& other) {
             return &other != &span && (other.name == name || other.name == except) &&
                    other.begin <= span.begin && other.end >= span.end;
           });
  }));
}

TEST(Timeline, HasTheLanesOfAllRanksWithNestedSpansOfTheStepsAskedFor) {
  const TempFolder folder;
  const Config config = with_layout(small_config(write_text(folder.path())), {"", 2, {"exchange"}});
  const std::filesystem::path file = folder.path() / "trace.json";
  run_world(Topology::one_node(2), [&](Communicator& world) {
    Timeline timeline(2, 3);
    Communicator traced = world.split_all(kTracerChannel, {.tracer = &timeline});
    Trainer trainer(config, traced);
    trainer.model().initialise(1);
    for (int i = 0; i < 4; ++i) trainer.step();
    write_timeline(world, timeline, "a \"host\"", file);
  });

  const Json trace = Json::parse(read_text(file));
  EXPECT_EQ(trace["otherData"]["spans_left_out"], (std::vector<double>{0, 0}));
  std::map<int, std::set<std::string>> lanes;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") lanes[event["pid"]].insert(event["args"]["name"]);
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], fmt::format("rank {} (a \"host\")", event["pid"].get<int>()));
    }
  }
  for (const int rank : {0, 1}) {
    for (const std::string name : {"compute", "gather", "reduce"}) {
      EXPECT_TRUE(lanes[rank].contains(name)) << "rank " << rank << " lane " << name;
      expect_nested(lane(trace, rank, name));
    }
    const std::vector<Event> compute = lane(trace, rank, "compute");
    EXPECT_EQ(count(compute, "step 1") + count(compute, "step 4"), 0);
    for (const std::string name : {"step 2", "step 3"}) EXPECT_EQ(count(compute, name), 1) << name;
    // Two steps, each forward and backward.
    for (const std::string name : {"embedding", "layer 0", "layer 1", "head"}) {
      EXPECT_EQ(count(compute, name), 4) << name;
    }
    // Once per layer and step in each direction; the messages of both are spans of their own inside.
    EXPECT_EQ(outermost(compute, "dispatch", "dispatch_again"), 2 * config.model.num_layers);
    EXPECT_EQ(outermost(compute, "dispatch_again", ""), 2 * config.model.num_layers);
    EXPECT_EQ(outermost(compute, "combine", ""), 2 * 2 * config.model.num_layers);
    EXPECT_EQ(count(compute, "update"), 2);
    EXPECT_GT(count(lane(trace, rank, "gather"), "layers.1.attention"), 0);
  }
}

TEST(Timeline, ClocksOfThreadsOfOneProcessNeedNoShift) {
  run_world(Topology::one_node(3), [](Communicator& world) {
    const ClockOffset offset = offset_to_rank_0(world);
    EXPECT_EQ(offset.us, 0);
    EXPECT_GE(offset.error_us, 0);
  });
}

}  // namespace
}  // namespace moesaic::testing
