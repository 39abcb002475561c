#include "bench/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "moesaic/core/error.h"

extern char** environ;

namespace moesaic::bench {
namespace {

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    // Closed on exec: a child must not hold the other child's pipe open. (dup2 clears it for its own.)
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw IoError(fmt::format("pipe: {}", std::strerror(errno)));
  }
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

}  // namespace

ChildProcess::ChildProcess(std::string name, const std::vector<std::string>& words,
                           const std::vector<std::string>& environment)
    : name_(std::move(name)) {
  std::signal(SIGPIPE, SIG_IGN);  // a child that died is an error of send(), not our end
  std::fflush(stdout);            // its chatter comes after what we said
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  const Pipe in, out;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  const int error = posix_spawnp(&pid_, words.front().c_str(), &actions, nullptr, pointers(words).data(),
                                 pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(in.ends[0]);
  close(out.ends[1]);
  to_ = fdopen(in.ends[1], "w");
  from_ = fdopen(out.ends[0], "r");
  if (error != 0) {
    pid_ = -1;
    throw IoError(fmt::format("{}: cannot start {}: {}", name_, words.front(), std::strerror(error)));
  }
}

ChildProcess::~ChildProcess() {
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void ChildProcess::send(const std::string& line) {
  if (std::fprintf(to_, "%s\n", line.c_str()) < 0 || std::fflush(to_) != 0) {
    throw Error(fmt::format("{} takes no more requests: it {}", name_, how_it_ended()));
  }
}

nlohmann::json ChildProcess::receive() {
  nlohmann::json answer = receive_or_end();
  if (answer.is_null()) throw Error(fmt::format("{} has not answered: it {}", name_, how_it_ended()));
  return answer;
}

nlohmann::json ChildProcess::receive_or_end() {
  char* line = nullptr;
  std::size_t capacity = 0;
  nlohmann::json answer;
  while (answer.is_null() && getline(&line, &capacity, from_) >= 0) {
    if (line[0] == '{') {
      answer = nlohmann::json::parse(line, nullptr, false);
      if (answer.is_discarded()) answer = nullptr;
    }
    if (answer.is_null()) fmt::print(stderr, "{}: {}", name_, line);
  }
  std::free(line);
  if (answer.is_object() && answer.contains("error")) {
    throw Error(fmt::format("{}: {}", name_, answer["error"].get<std::string>()));
  }
  if (answer.is_null() && how_it_ended() != "ended with status 0") {
    throw Error(fmt::format("{} {}", name_, how_it_ended()));
  }
  return answer;
}

std::string ChildProcess::how_it_ended() {
  if (pid_ > 0) {
    waitpid(pid_, &status_, 0);
    pid_ = -1;
  }
  return WIFSIGNALED(status_) ? fmt::format("was killed by signal {}", WTERMSIG(status_))
                              : fmt::format("ended with status {}", WEXITSTATUS(status_));
}

std::string own_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (size < 0) throw IoError(fmt::format("/proc/self/exe: {}", std::strerror(errno)));
  return {path.data(), static_cast<std::size_t>(size)};
}

}  // namespace moesaic::bench
