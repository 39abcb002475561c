// measure.h: measures a Calibration on the ranks of a job.
//
// Collective over `world`; the result is equal on all ranks (times of the slowest rank). Takes about
// `budget_s`, longer only where the smallest useful message takes longer, as on links under 1 Mb/s. Messages
// travel as in a gather of parameters: between nodes from every rank to its counterpart on each other node,
// inside a node from every rank to each other. So a time per message or per byte already holds what the
// ranks of this job cost each other, and is good for a job of the same layout.
//
// Memory: some 40 MiB a rank while it runs. Errors: InvalidArgument for a budget that is no time above 0;
// what executor.h says.
#pragma once

#include <string>

#include "moesaic/comm/communicator.h"
#include "moesaic/cost/calibration.h"

namespace moesaic {

struct CalibrateOptions {
  double budget_s = 2;       // half of it for messages, half for the coders
  std::string machine = {};  // kept in the result
};

// Collective: rank 0's, on all ranks. (One that was read from a file, say; only rank 0's `mine` counts.)
Calibration from_rank_0(Communicator& world, const Calibration& mine);

Calibration calibrate(Communicator& world, const CalibrateOptions& options);

}  // namespace moesaic
