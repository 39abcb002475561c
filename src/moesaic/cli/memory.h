// memory.h: what this machine has left.
#pragma once

#include <cstdint>

namespace moesaic::cli {

// Bytes that can be allocated without swapping, as Linux estimates; 0 where it does not say.
std::int64_t available_memory();

}  // namespace moesaic::cli
