// inproc.h: ranks are threads of one process. The embedded default and the test bed.
//
// A message is one memcpy from the sender's buffer to the receiver's, made by whichever side comes second.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "moesaic/comm/transport.h"

namespace moesaic {

// One transport per rank, connected to each other.
std::vector<std::unique_ptr<Transport>> make_inproc_transports(int world_size);

// Runs body(transport) on `world_size` threads and joins them. If a rank throws, the others are aborted
// (their waits throw PeerLost) and the first error is rethrown with "rank R: " before its message, its class
// kept.
void run_inproc(int world_size, const std::function<void(Transport&)>& body);

}  // namespace moesaic
