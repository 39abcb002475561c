#include "moesaic/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace moesaic::cli {

namespace {

double exposed_share(const StepReport& report) {
  double exposed = 0, all = 0;
  for (const RankTimes& times : report.by_rank) {
    exposed += times.phases.exposed();
    all += times.seconds;
  }
  return all > 0 ? exposed / all : 0;
}

// What a node's link carries out per step; on one node, what passes between its ranks.
std::string traffic(const StepReport& report, int num_nodes) {
  const std::int64_t all =
      report.gather.total + report.reduce.total + report.exchange.total + report.control.total;
  const double bytes = static_cast<double>(num_nodes > 1 ? report.inter_node_bytes() / num_nodes : all);
  return fmt::format("{:.3g} MB{}", bytes / 1e6, num_nodes > 1 ? "/NIC" : " moved");
}

// Of the weights that were gathered coded; nothing where all travelled raw.
std::string bits_per_weight(const StepReport& report) {
  std::int64_t words = 0, bytes = 0;
  for (const UnitGathers& gathers : report.gathers) {
    if (gathers.method == codec::Method::kRaw) continue;
    words += gathers.counts.words;
    bytes += gathers.counts.coded_bytes;
  }
  return words == 0 ? ""
                    : fmt::format("  {:.2f} b/weight",
                                  8.0 * static_cast<double>(bytes) / static_cast<double>(words));
}

}  // namespace

ProgressBar::ProgressBar(std::int64_t first, std::int64_t last, int num_nodes)
    : first_(first), last_(last), num_nodes_(num_nodes), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && seconds_ > 0) fmt::print(stderr, "\n");
}

void ProgressBar::show(const StepReport& report) {
  seconds_ += report.seconds;
  if (!terminal_) return;
  constexpr int kWidth = 24;
  const auto done = static_cast<int>(kWidth * report.step / std::max<std::int64_t>(1, last_));
  const double per_step = seconds_ / static_cast<double>(report.step - first_ + 1);
  const auto left = static_cast<std::int64_t>(per_step * static_cast<double>(last_ - report.step));
  // \x1b[K clears what a longer line left behind.
  fmt::print(
      stderr,
      "\r{:{}}/{} [{:<{}}] loss {:.3f}  {:.1f}k tokens/s  exposed {:.0f}%  {}{}  {}:{:02} left{}\x1b[K",
      report.step, std::to_string(last_).size(), last_, std::string(static_cast<std::size_t>(done), '='),
      kWidth, report.loss, report.tokens_per_s / 1000.0, 100.0 * exposed_share(report),
      traffic(report, num_nodes_), bits_per_weight(report), left / 60, left % 60,
      report.skipped ? "  (step skipped: not finite)" : "");
  std::fflush(stderr);
}

}  // namespace moesaic::cli
