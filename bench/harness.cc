#include "bench/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/machine.h"

namespace moesaic::bench {
namespace {

constexpr int kRepetitions = 21;
constexpr double kMinRepetitionUs = 2000;  // long against the clock's resolution and an interrupt
constexpr double kMaxCaseUs = 4e6;         // of ours and baseline together

double time_us(const std::function<void()>& body, std::int64_t calls) {
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < calls; ++i) body();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(calls);
}

std::int64_t calls_per_repetition(const std::function<void()>& body) {
  time_us(body, 1);  // pages and caches
  const double once = std::max(time_us(body, 1), 1e-3);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(kMinRepetitionUs / once)));
}

std::pair<Timing, Timing> time_in_turn(const Case& c) {
  const std::int64_t calls = calls_per_repetition(c.run);
  const std::int64_t baseline_calls = calls_per_repetition(c.run_baseline);
  std::vector<double> ours, baseline;
  double spent = 0;
  for (int i = 0; i < kRepetitions && (spent < kMaxCaseUs || i < 3); ++i) {
    const auto once = [&](bool mine) {
      const std::int64_t n = mine ? calls : baseline_calls;
      (mine ? ours : baseline).push_back(time_us(mine ? c.run : c.run_baseline, n));
      spent += (mine ? ours : baseline).back() * static_cast<double>(n);
    };
    once(i % 2 == 0);  // neither always goes first
    once(i % 2 == 1);
  }
  return {summarize(std::move(ours)), summarize(std::move(baseline))};
}

}  // namespace

Timing summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double quantile) {
    return samples[static_cast<std::size_t>(std::lround(quantile * static_cast<double>(samples.size() - 1)))];
  };
  return {samples.front(), at(0.5), at(0.9)};
}

Report::Report(std::string_view name, int threads, std::FILE* out)
    : name_(name), threads_(threads), out_(out) {}

void Report::say(const std::string& line) const {
  if (out_ == nullptr) return;
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

void Report::measure(const Case& c) {
  std::string wrong = c.check();
  Timing ours{}, baseline{};
  if (wrong.empty()) {
    std::tie(ours, baseline) = time_in_turn(c);
    wrong = c.check();
  }
  if (!wrong.empty()) {
    fail(c.name, "moesaic", "time_us", "us", wrong);
    return;
  }

  const auto add_times = [&](const std::string& variant, const Timing& t) {
    rows_.push_back({c.name, variant, "time_us", t.median, "us", true});
    rows_.push_back({c.name, variant, "time_us_min", t.min, "us", true});
    rows_.push_back({c.name, variant, "time_us_p90", t.p90, "us", true});
  };
  add_times("moesaic", ours);
  add_times(c.baseline, baseline);
  const double ratio = ours.median / baseline.median;
  rows_.push_back({c.name, "moesaic", c.ratio, ratio, "ratio", true});
  std::string line =
      fmt::format("{:<44} moesaic {:>9.2f} {:>9.2f} {:>9.2f}  {} {:>9.2f} {:>9.2f} {:>9.2f} us  {} {:.2f}",
                  c.name, ours.min, ours.median, ours.p90, c.baseline, baseline.min, baseline.median,
                  baseline.p90, c.ratio, ratio);
  if (c.work.bytes > 0) {
    rows_.push_back({c.name, "moesaic", "gb_per_s", c.work.bytes / ours.median / 1e3, "GB/s", true});
    line += fmt::format("  {:.1f} GB/s", rows_.back().value);
  }
  if (c.work.flops > 0) {
    rows_.push_back({c.name, "moesaic", "gflop_per_s", c.work.flops / ours.median / 1e3, "GFLOP/s", true});
    line += fmt::format("  {:.1f} GFLOP/s", rows_.back().value);
  }
  say(line);
}

void Report::add(Row row) {
  if (row.verified) {
    say(fmt::format("{:<44} {} {} {:.6g} {}{}", row.name, row.variant, row.metric, row.value, row.unit,
                    row.note.empty() ? "" : fmt::format(" ({})", row.note)));
  } else {
    say(fmt::format("{:<44} {} {} WRONG", row.name, row.variant, row.metric));
    row.value = std::nan("");
    all_verified_ = false;
  }
  rows_.push_back(std::move(row));
}

void Report::fail(const std::string& name, const std::string& variant, const std::string& metric,
                  const std::string& unit, const std::string& why) {
  say(fmt::format("{:<44} WRONG: {}", name, why));
  rows_.push_back({name, variant, metric, std::nan(""), unit, false, why});
  all_verified_ = false;
}

void Report::absent(const std::string& name, const std::string& variant, const std::string& why) {
  say(fmt::format("{:<44} {} ABSENT: {}", name, variant, why));
  rows_.push_back({name, variant, "time_us", std::nan(""), "us", false, "absent: " + why});
}

void Report::add_all(const nlohmann::json& report) {
  for (const auto& row : report.at("rows")) {
    const auto& value = row.at("value");
    add({row.at("case"), row.at("variant"), row.at("metric"),
         value.is_null() ? std::nan("") : value.get<double>(), row.at("unit"), row.at("verified"),
         row.value("note", "")});
  }
}

nlohmann::json Report::json() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : rows_) {
    rows.push_back({{"case", row.name},
                    {"variant", row.variant},
                    {"metric", row.metric},
                    {"value", std::isnan(row.value) ? nlohmann::json() : nlohmann::json(row.value)},
                    {"unit", row.unit},
                    {"verified", row.verified}});
    if (!row.note.empty()) rows.back()["note"] = row.note;
  }
  return {{"name", name_}, {"machine", describe_machine(threads_)}, {"rows", rows}};
}

}  // namespace moesaic::bench
