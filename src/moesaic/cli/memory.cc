#include "moesaic/cli/memory.h"

#include <fstream>
#include <string>

namespace moesaic::cli {

std::int64_t available_memory() {
  std::ifstream lines("/proc/meminfo");
  std::string name;
  std::int64_t kibibytes = 0;
  for (std::string unit; lines >> name >> kibibytes && std::getline(lines, unit);) {
    if (name == "MemAvailable:") return kibibytes * 1024;
  }
  return 0;
}

}  // namespace moesaic::cli
