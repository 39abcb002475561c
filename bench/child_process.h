// child_process.h: a program that answers lines: how peers in other runtimes take turns with ours.
//
// One request line in, one answer line out; between two requests the child sleeps on its pipe. Lines that are
// not JSON objects are its chatter and go to our standard error. Local.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace moesaic::bench {

class ChildProcess {
 public:
  // words[0] is looked up in PATH. `environment` ("NAME=value") is added to ours. Errors of the child are
  // named by `name`.
  ChildProcess(std::string name, const std::vector<std::string>& words,
               const std::vector<std::string>& environment = {});
  // Closes its input, which ends it, and waits.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void send(const std::string& line);
  // The next JSON object it prints. Throws Error with what went wrong when it ends instead, or when the
  // object has an "error".
  nlohmann::json receive();
  // As receive(), but a null where it has ended with status 0.
  nlohmann::json receive_or_end();
  nlohmann::json ask(const std::string& line) {
    send(line);
    return receive();
  }

 private:
  std::string how_it_ended();

  std::string name_;
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  int status_ = 0;
};

// glibc's malloc as `moesaic` and this program set it for themselves: freed memory keeps its pages. For
// others.
inline const std::vector<std::string> kKeepFreedMemory = {"MALLOC_MMAP_THRESHOLD_=1073741824",
                                                          "MALLOC_TRIM_THRESHOLD_=1073741824"};

// This program, to start it again in another role.
std::string own_path();

}  // namespace moesaic::bench
