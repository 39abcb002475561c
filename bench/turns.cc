#include "bench/turns.h"

#include <chrono>

namespace moesaic::bench {

void in_turn(std::size_t n, int rounds, const std::function<void(std::size_t, int)>& take) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < n; ++turn) take((static_cast<std::size_t>(round) + turn) % n, round);
  }
}

void take_turns(std::vector<Contender>& contenders, int rounds) {
  in_turn(contenders.size(), rounds, [&](std::size_t i, int) {
    Contender& contender = contenders[i];
    contender.before();
    const auto start = std::chrono::steady_clock::now();
    contender.run();
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    contender.us.push_back(elapsed.count());
  });
}

double median_ratio(const Contender& a, const Contender& b) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < a.us.size(); ++round) ratios.push_back(a.us[round] / b.us[round]);
  return summarize(std::move(ratios)).median;
}

void add_times(Report& report, const std::string& name, const std::string& metric,
               const std::vector<Contender>& contenders) {
  for (const Contender& contender : contenders) {
    const Timing t = summarize(contender.us);
    report.add({name, contender.variant, metric, t.median, "us", true});
    report.add({name, contender.variant, metric + "_min", t.min, "us", true});
    report.add({name, contender.variant, metric + "_p90", t.p90, "us", true});
  }
}

}  // namespace moesaic::bench
