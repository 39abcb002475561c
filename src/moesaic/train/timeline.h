// timeline.h: what every thread of every rank did, step by step, as a file for a trace viewer.
//
// run_dir/trace.json is in Chrome's trace-event format, which https://ui.perfetto.dev opens: one process per
// rank, one lane per thread. Times are microseconds of rank 0's clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "moesaic/comm/communicator.h"
#include "moesaic/core/trace.h"

namespace moesaic {

// A Tracer that keeps what it hears from the begin of one training step to the end of another. Memory: 40
// bytes per span kept, at most kMaxSpans of them; how many were left out then is said in the file.
class Timeline final : public Tracer {
 public:
  static constexpr std::size_t kMaxSpans = std::size_t{1} << 18;

  // Steps are counted from 1, both ends included.
  Timeline(std::int64_t first_step, std::int64_t last_step)
      : first_step_(first_step), last_step_(last_step) {}

  void begin(const SpanInfo& span) override;
  void end(const SpanInfo& span) noexcept override;

  std::int64_t last_step() const { return last_step_; }
  // Microseconds since this clock's own start; of the first span kept.
  double first_us() const;
  std::int64_t left_out() const;

  // This rank's events, one a line, each followed by a comma; `offset_us` is added to every time.
  std::string events(int rank, const std::string& process_name, double offset_us) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    Phase phase;
    bool waiting;
    int index;
    std::uint32_t name, lane;
    Clock::time_point begin, end;
  };
  struct Open {
    Clock::time_point begin;
    bool recorded;
  };
  struct Lane {
    std::string name;
    std::vector<Open> open;
  };
  std::size_t lane_of(const SpanInfo& span);
  std::size_t id_of(std::string_view name);

  std::int64_t first_step_, last_step_;
  mutable std::mutex mutex_;
  bool recording_ = false;
  std::vector<Lane> lanes_;
  std::vector<std::string> names_;
  std::map<std::string, std::size_t, std::less<>> id_of_name_;
  std::vector<Kept> spans_;
  std::int64_t left_out_ = 0;
};

// How far the clock of rank 0 is ahead of this rank's.
struct ClockOffset {
  double us = 0;
  double error_us = 0;  // the true offset is within this of `us`
};

// Collective. Every rank tells all others its time, 16 times over. Who has received rank 0's time knows that
// it is later than that on rank 0's clock, and rank 0 knows the same of the others': so each round bounds the
// offset from both sides, by about the time a message takes. Where 0 is within the bounds it is taken: ranks
// of one machine share a clock.
ClockOffset offset_to_rank_0(Communicator& world);

// Collective: rank 0 writes the events of all ranks. `host`: this rank's, for people. IoError on every rank
// when rank 0 cannot write.
void write_timeline(Communicator& world, const Timeline& timeline, const std::string& host,
                    const std::filesystem::path& file);

}  // namespace moesaic
