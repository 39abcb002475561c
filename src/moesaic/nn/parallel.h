// parallel.h: independent tasks on the threads of this rank.
//
// Local. The threads are those that torch's operators use (one OpenMP pool for each rank, threads.h says how
// many): a second pool would fight with them for the cores.
#pragma once

#include <cstdint>
#include <functional>

namespace moesaic {

// Calls task(0) ... task(n-1) and returns when all are done. Tasks are handed out one by one, in order: they
// may differ in length. The first exception leaves once every thread has stopped.
void run_tasks(std::int64_t n, const std::function<void(std::int64_t)>& task);

}  // namespace moesaic
