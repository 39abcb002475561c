#include "moesaic/train/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "moesaic/comm/collectives.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/train/agree.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

double microseconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

double now_us() { return microseconds(std::chrono::steady_clock::now()); }

std::vector<double> all_gather(Communicator& world, double mine) {
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<double> all(size);
  const std::vector<std::int64_t> bytes(size, sizeof(double));
  all_gather_v(world, std::as_bytes(std::span(&mine, 1)), bytes, std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

std::size_t Timeline::lane_of(const SpanInfo& span) {
  const auto found = std::ranges::find(lanes_, span.lane, &Lane::name);
  if (found == lanes_.end()) lanes_.push_back({std::string(span.lane), {}});
  return static_cast<std::size_t>(std::ranges::find(lanes_, span.lane, &Lane::name) - lanes_.begin());
}

std::size_t Timeline::id_of(std::string_view name) {
  if (const auto found = id_of_name_.find(name); found != id_of_name_.end()) return found->second;
  names_.emplace_back(name);
  return id_of_name_[names_.back()] = names_.size() - 1;
}

void Timeline::begin(const SpanInfo& span) {
  const std::lock_guard lock(mutex_);
  if (span.phase == Phase::kStep && span.index >= first_step_ && span.index <= last_step_) recording_ = true;
  lanes_[lane_of(span)].open.push_back({Clock::now(), recording_});
}

void Timeline::end(const SpanInfo& span) noexcept {
  const std::lock_guard lock(mutex_);
  const std::size_t lane = lane_of(span);
  const Open open = lanes_[lane].open.back();
  lanes_[lane].open.pop_back();
  if (span.phase == Phase::kStep && span.index == last_step_) recording_ = false;
  if (!open.recorded) return;
  if (spans_.size() == kMaxSpans) {
    ++left_out_;
    return;
  }
  spans_.push_back({span.phase, span.waiting, span.index, static_cast<std::uint32_t>(id_of(span.name)),
                    static_cast<std::uint32_t>(lane), open.begin, Clock::now()});
}

double Timeline::first_us() const {
  const std::lock_guard lock(mutex_);
  const auto first = std::ranges::min_element(spans_, {}, &Kept::begin);
  return first == spans_.end() ? std::numeric_limits<double>::infinity() : microseconds(first->begin);
}

std::int64_t Timeline::left_out() const {
  const std::lock_guard lock(mutex_);
  return left_out_;
}

std::string Timeline::events(int rank, const std::string& process_name, double offset_us) const {
  const std::lock_guard lock(mutex_);
  const auto named = [&](std::string_view what, std::size_t lane, const std::string& name) {
    return Json{{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}}
               .dump() +
           ",\n";
  };
  std::string text = named("process_name", 0, process_name);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    text += named("thread_name", lane, lanes_[lane].name);
  }
  for (const Kept& span : spans_) {
    std::string name = span.waiting ? "wait: " + names_[span.name] : names_[span.name];
    if (span.index >= 0) name += fmt::format(" {}", span.index);
    const double begin = microseconds(span.begin);
    text += fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":"{}{}","name":{}}},)",
                        rank, span.lane, begin + offset_us, microseconds(span.end) - begin,
                        name_of(span.phase), span.waiting ? ",waiting" : "", Json(name).dump());
    text += "\n";
  }
  return text;
}

ClockOffset offset_to_rank_0(Communicator& world) {
  constexpr int kRounds = 16;
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const double sent = now_us();
    const std::vector<double> sent_by = all_gather(world, sent);
    const double received = now_us();
    const std::vector<double> received_by = all_gather(world, received);
    const auto self = static_cast<std::size_t>(world.rank());
    least = std::max(least, sent_by[0] - received_by[self]);
    most = std::min(most, received_by[0] - sent_by[self]);
  }
  if (least <= 0 && most >= 0) return {0, std::max(-least, most)};
  return {(least + most) / 2, (most - least) / 2};
}

void write_timeline(Communicator& world, const Timeline& timeline, const std::string& host,
                    const std::filesystem::path& file) {
  const ClockOffset offset = offset_to_rank_0(world);
  const std::vector<double> first = all_gather(world, timeline.first_us() + offset.us);
  const std::vector<double> error = all_gather(world, offset.error_us);
  const std::vector<double> left_out = all_gather(world, static_cast<double>(timeline.left_out()));
  const double start = *std::ranges::min_element(first);
  const int rank = world.rank();
  const std::vector<std::string> events = texts_on_rank_0(
      world, timeline.events(rank, fmt::format("rank {} ({})", rank, host), offset.us - start));
  Failure failure;
  if (rank == 0) {
    std::string text = "{\"traceEvents\": [\n";
    for (const std::string& of_rank : events) text += of_rank;
    text.resize(text.size() - 2);  // the last comma
    text += fmt::format("\n],\n\"displayTimeUnit\": \"ms\",\n\"otherData\": {}}}\n",
                        Json{{"clock_error_us", error}, {"spans_left_out", left_out}}.dump());
    attempt(failure, [&] { write_text_synced(file, text); });
  }
  agree(world, failure);
}

}  // namespace moesaic
