// measure_codec.h: how fast this job's ranks code, decode and copy; part of calibrate().
//
// Collective; the result is equal on all ranks.
#pragma once

#include "moesaic/comm/communicator.h"
#include "moesaic/cost/calibration.h"

namespace moesaic {

// Fills in `copy`, `codec` and `gradients` of `result`.
void measure_codec(Communicator& world, double budget_s, Calibration& result);

}  // namespace moesaic
