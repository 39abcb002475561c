// turns.h: programs, or ways of doing one thing, timed in turn: round by round, so that a busy minute of the
// machine falls on all of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/harness.h"

namespace moesaic::bench {

struct Contender {
  std::string variant;
  std::function<void()> run;
  std::function<void()> before = [] {};  // each time; not in the time
  std::vector<double> us{};              // of each round
};

// Calls take(i, round) for every i of 0 .. n-1 once a round; who goes first changes with the round.
void in_turn(std::size_t n, int rounds, const std::function<void(std::size_t i, int round)>& take);

// Every contender once a round, timed.
void take_turns(std::vector<Contender>& contenders, int rounds);

// The median over the rounds of a's time / b's time in the same round.
double median_ratio(const Contender& a, const Contender& b);

// Rows `metric` (median), `metric`_min and `metric`_p90, in us, of each contender.
void add_times(Report& report, const std::string& name, const std::string& metric,
               const std::vector<Contender>& contenders);

}  // namespace moesaic::bench
