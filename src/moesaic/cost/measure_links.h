// measure_links.h: the α and β of a job's links; part of calibrate().
//
// Collective; the result is equal on all ranks.
#pragma once

#include "moesaic/comm/communicator.h"
#include "moesaic/cost/calibration.h"

namespace moesaic {

struct MeasuredLinks {
  Link inside, between;
  bool between_measured = false;
};

// A link that no message crosses (one rank, one rank a node) is taken for the other one; in a world of 1 both
// are 0.
MeasuredLinks measure_links(Communicator& world, double budget_s);

}  // namespace moesaic
