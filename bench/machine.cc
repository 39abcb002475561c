#include "bench/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace moesaic::bench {
namespace {

// The value of the first "key : value" line of /proc/cpuinfo, "" if there is none.
std::string cpu_fact(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

// Those that decide which code runs.
std::vector<std::string> flags_of_interest() {
  const std::vector<std::string> wanted = {"sse4_1",   "avx2",     "fma",      "f16c",        "bmi2",
                                           "avx512f",  "avx512bw", "avx512vl", "avx512_bf16", "avx512_vbmi",
                                           "amx_bf16", "asimd",    "sve"};
  std::istringstream all(cpu_fact("flags") + " " + cpu_fact("Features"));
  std::vector<std::string> found;
  for (std::string flag; all >> flag;) {
    if (std::find(wanted.begin(), wanted.end(), flag) != wanted.end()) found.push_back(flag);
  }
  return found;
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

nlohmann::json describe_machine(int threads) {
  return {{"cpu", cpu_fact("model name")},
          {"cores", usable_cores()},
          {"flags", flags_of_interest()},
          {"cache_bytes", sysconf(_SC_LEVEL3_CACHE_SIZE)},
          {"memory_bytes", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)},
          {"compiler", MOESAIC_COMPILER},
          {"build_type", MOESAIC_BUILD_TYPE},
          {"threads", threads}};
}

}  // namespace moesaic::bench
