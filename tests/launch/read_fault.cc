// Preloaded into moesaic, it puts a fault into reading files: the program is the one that people run, and
// every read is a place to die. READ_FAULT="RANK NTH ACTION TEXT": at the NTH read (from 1) of a file whose
// path has TEXT, on RANK of an MPI job (any rank: -1), ACTION is kill (SIGKILL), stop (SIGSTOP) or fail (the
// disk does). A file READ_FAULT_MET is made then.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <string>

namespace {

struct Fault {
  int rank = -1;
  long nth = 0;
  std::string action, text;
};

Fault fault_of_environment() {
  Fault fault;
  if (const char* words = std::getenv("READ_FAULT"))
    std::istringstream(words) >> fault.rank >> fault.nth >> fault.action >> fault.text;
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (fault.rank >= 0 && (rank == nullptr || std::atoi(rank) != fault.rank)) fault.nth = 0;
  return fault;
}

std::string path_of(int descriptor) {
  char path[4096];
  const ssize_t length =
      ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
  return {path, length > 0 ? static_cast<std::size_t>(length) : 0};
}

// Whether this read is to fail.
bool meets_fault(int descriptor) {
  static const Fault fault = fault_of_environment();
  static std::atomic<long> reads = 0;
  if (fault.nth == 0 || path_of(descriptor).find(fault.text) == std::string::npos) return false;
  if (++reads != fault.nth) return false;
  if (const char* mark = std::getenv("READ_FAULT_MET")) ::close(::open(mark, O_CREAT | O_WRONLY, 0644));
  if (fault.action == "kill") ::kill(::getpid(), SIGKILL);
  if (fault.action == "stop") ::kill(::getpid(), SIGSTOP);
  return fault.action == "fail";
}

}  // namespace

extern "C" ssize_t pread(int descriptor, void* bytes, std::size_t count, off_t offset) {
  using Read = ssize_t (*)(int, void*, std::size_t, off_t);
  static const auto next = reinterpret_cast<Read>(::dlsym(RTLD_NEXT, "pread"));
  if (meets_fault(descriptor)) {
    errno = EIO;
    return -1;
  }
  return next(descriptor, bytes, count, offset);
}
