// work_together.h: local work of unknown length, while the ranks keep telling each other that they are alive.
//
// Writing a checkpoint can take a rank minutes (a slow disk, a full cache that must drain), the others have
// nothing to do meanwhile, and silence past the timeout counts as a loss. Here it does not: the work runs on
// a thread of its own and the calling thread meets the others, several times per timeout, until all are
// done. A rank that is killed or stopped does not come to these meetings and is lost as ever; one whose disk
// never answers is alive.
//
// Collective. Cost: a thread, and one all_reduce of 8 bytes per meeting; at least one, at most one more than
// needed. A rank that has nothing to do still calls it.
#pragma once

#include <functional>
#include <string_view>

#include "moesaic/comm/communicator.h"

namespace moesaic {

// Name, for traces, of the thread that `work` runs on.
inline constexpr std::string_view kWorkLane = "files";

// Returns when `work` has returned on every rank. What it throws here is thrown here at once; PeerLost after
// it has returned here.
void work_together(Communicator& world, const std::function<void()>& work);

}  // namespace moesaic
