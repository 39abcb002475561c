// machine.h: the facts a figure is worth nothing without.
#pragma once

#include <nlohmann/json.hpp>

namespace moesaic::bench {

// cpu, cores (this process may use), flags, cache_bytes (last level), memory_bytes, compiler, build_type,
// threads.
nlohmann::json describe_machine(int threads);

}  // namespace moesaic::bench
