// paced_transport.h: a slow link in front of a rank, emulated: what it receives arrives one message after
// another at a stated rate, each a latency later.
//
// Wraps any transport. Only the receiving side is slowed: a message counts as arrived when the wrapped one
// has delivered it and the link has had the time. Bytes and order are those of the wrapped transport. Sends
// are done when the wrapped transport says so.
#pragma once

#include <memory>

#include "moesaic/comm/transport.h"

namespace moesaic::bench {

struct LinkSpeed {
  double bits_per_s;
  std::chrono::microseconds latency;
};

std::unique_ptr<Transport> make_paced_transport(Transport& wrapped, LinkSpeed speed);

}  // namespace moesaic::bench
