// checks.h: collective checks of the exchange: cases by every route. They throw Mismatch, as a Trip does.
#pragma once

#include <vector>

#include "tests/exchange/trip.h"

namespace moesaic::exchange_checks {

// Forward and backward.
inline void check_case(Communicator& group, const Case& c, DType dtype, const Way& way) {
  try {
    Trip trip(group, c, dtype, way);
    trip.go();
    trip.come_back("x", scale_by_id, dtype);
    trip.come_back("x", identity, dtype);
    trip.come_back("x", scale_by_id, dtype == DType::kF32 ? DType::kBF16 : DType::kF32);
    trip.go_again();
    trip.come_back("g", scale_by_id, dtype);
    trip.return_values();
  } catch (const Mismatch& e) {
    throw Mismatch(fmt::format("{}, case '{}', {}: {}", describe(way), c.name, name_of(dtype), e.what()));
  }
}

// Every case in both dtypes.
inline void check_all_cases(Communicator& group, const Way& way) {
  for (const Case& c : cases()) {
    if (!c.random_table && c.num_experts < group.size()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (way.fp32_sums && dtype == DType::kF32) continue;  // as without
      check_case(group, c, dtype, way);
    }
  }
}

inline void check_all_routes(Communicator& group) {
  for (const Route route : kRoutes) {
    check_all_cases(group, {.route = route});
    check_all_cases(group, {.route = route, .fp32_sums = true});
  }
  check_all_cases(group, {.route = std::nullopt});
  check_all_cases(group, {.route = std::nullopt, .fp32_sums = true});
}

// By every route, but few cases: for hosts, between which every message takes its time.
inline void check_few_cases(Communicator& group) {
  std::vector<Way> ways;
  for (const bool fp32_sums : {false, true}) {
    for (const Route route : kRoutes) ways.push_back({.route = route, .fp32_sums = fp32_sums});
    ways.push_back({.route = std::nullopt, .fp32_sums = fp32_sums});
  }
  ways.push_back({Route::kRailDedup, 3, true});
  ways.push_back({Route::kLeader, 2, true});
  for (const Case& c : cases()) {
    if (c.name != "random table" && c.name != "wide" && c.name != "no tokens on one rank") continue;
    for (const Way& way : ways) check_case(group, c, DType::kBF16, way);
    check_case(group, c, DType::kF32, {});
  }
}

// Two forwards before the first backward, as two layers or two micro-batches have: handles do not disturb
// each other, whatever their routes.
inline void check_two_in_flight(Communicator& group) {
  Trip first(group, cases()[1], DType::kF32, {.route = Route::kRailDedup}),
      second(group, cases()[5], DType::kBF16);
  first.go();
  first.come_back("x", scale_by_id, DType::kF32);
  second.go();
  second.come_back("x", scale_by_id, DType::kBF16);
  second.go_again();
  second.come_back("g", scale_by_id, DType::kBF16);
  second.return_values();
  first.go_again();
  first.come_back("g", scale_by_id, DType::kF32);
  first.return_values();
}

}  // namespace moesaic::exchange_checks
