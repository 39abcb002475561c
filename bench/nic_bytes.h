// nic_bytes.h: what the network card of this host has sent and received. Local. No library: programs without
// any use it too.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace moesaic::bench {

struct NicBytes {
  std::int64_t sent = 0, received = 0;
};

// Since the host came up; zeros where there is no eth0, as outside an emulated cluster.
inline NicBytes nic_bytes_of_this_host() {
  std::ifstream file("/proc/net/dev");
  for (std::string line; std::getline(file, line);) {
    const auto name = line.find("eth0:");
    if (name == std::string::npos) continue;
    // Eight figures of what was received, then what was sent.
    std::istringstream figures(line.substr(name + 5));
    NicBytes bytes;
    figures >> bytes.received;
    for (int skipped = 0; skipped < 7; ++skipped) figures >> bytes.sent;
    figures >> bytes.sent;
    return bytes;
  }
  return {};
}

}  // namespace moesaic::bench
