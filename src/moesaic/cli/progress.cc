#include "moesaic/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace moesaic::cli {

ProgressBar::ProgressBar(std::int64_t first, std::int64_t last)
    : first_(first), last_(last), terminal_(isatty(STDERR_FILENO) == 1) {}

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
      stderr, "\r{:{}}/{} [{:<{}}] loss {:.3f}  {:.1f}k tokens/s  waiting {:.0f}%  {}:{:02} left{}\x1b[K",
      report.step, std::to_string(last_).size(), last_, std::string(static_cast<std::size_t>(done), '='),
      kWidth, report.loss, report.tokens_per_s / 1000.0, 100.0 * report.blocked_seconds / report.seconds,
      left / 60, left % 60, report.skipped ? "  (step skipped: not finite)" : "");
  std::fflush(stderr);
}

}  // namespace moesaic::cli
