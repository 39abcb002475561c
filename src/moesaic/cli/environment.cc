#include "moesaic/cli/environment.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "moesaic/cli/launch.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/train/agree.h"

namespace moesaic::cli {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t memory_bytes() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return 0;
  return static_cast<std::int64_t>(info.totalram) * static_cast<std::int64_t>(info.mem_unit);
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
  return text;
}

std::string system_name() {
  utsname name{};
  if (uname(&name) != 0) return "";
  return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
}

// An earlier start's file that cannot be read is no reason not to train.
Json earlier_invocations(const std::filesystem::path& file) {
  std::ifstream in(file);
  const Json found = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!found.is_object() || !found.contains("invocations") || !found["invocations"].is_array())
    return Json::array();
  return found["invocations"];
}

}  // namespace

std::string host_name() {
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.c_str();
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t value = line.find_first_not_of(": \t", line.find(':'));
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

void record_environment(Communicator& world, const Config& config, std::int64_t from_step,
                        const std::filesystem::path& file) {
  const std::vector<std::string> hosts = gather_texts(world, host_name());
  Failure failure;
  if (world.rank() == 0) {
    Json invocations = earlier_invocations(file);
    invocations.push_back({
        {"started", now()},
        {"from_step", from_step},
        {"ranks", world.size()},
        {"threads_per_rank", config.parallel.threads_per_rank},
        {"nodes", world.topology().num_nodes()},
        {"transport", under_mpi() ? "MPI processes" : "threads of one process"},
        {"hosts", hosts},
        {"cpu", cpu_name()},
        {"cores", std::thread::hardware_concurrency()},
        {"memory_bytes", memory_bytes()},
        {"system", system_name()},
        {"moesaic", fmt::format("{} ({}, {})", MOESAIC_VERSION, kGitVersion, MOESAIC_BUILD_TYPE)},
        {"torch", TORCH_VERSION},
        {"mpi", mpi_library_version()},
        {"compiler", fmt::format("g++ {}", __VERSION__)},
    });
    attempt(failure, [&] {
      const std::filesystem::path renewed = file.string() + ".tmp";
      write_text_synced(renewed, Json{{"invocations", invocations}}.dump(1) + "\n");
      rename_path(renewed, file);
    });
  }
  agree(world, failure);
}

}  // namespace moesaic::cli
