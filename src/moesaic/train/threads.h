// threads.h: how many threads torch may use for this rank's arithmetic.
#pragma once

namespace moesaic {

// Call in the rank's own thread before any torch operation. Part of the layout: another number may change
// bits.
void limit_compute_threads(int threads);

}  // namespace moesaic
