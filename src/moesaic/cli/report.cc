#include "moesaic/cli/report.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/core/error.h"

namespace moesaic::cli {
namespace {

std::string from_environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// This process's environment, with our Python modules found first.
std::vector<std::string> child_environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("PYTHONPATH=")) variables.emplace_back(*variable);
  }
  const std::string rest = from_environment("PYTHONPATH", "");
  variables.push_back("PYTHONPATH=" MOESAIC_PYTHON_PATH + (rest.empty() ? "" : ":" + rest));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The exit status; -1 when a signal ended it.
int run_and_wait(std::vector<std::string> words) {
  std::vector<std::string> environment = child_environment();
  pid_t child = 0;
  const int error = posix_spawnp(&child, words[0].c_str(), nullptr, nullptr, pointers_to(words).data(),
                                 pointers_to(environment).data());
  if (error != 0) {
    throw IoError(fmt::format(
        "the report needs Python, but {} cannot be run: {}; set MOESAIC_PYTHON to one with plotly", words[0],
        std::strerror(error)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw IoError(fmt::format("waiting for {}: {}", words[0], std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct ReportCommand {
  std::filesystem::path run_dir, output, tensorboard;

  void run() const {
    // Events alone when only they were asked for.
    const bool page = !output.empty() || tensorboard.empty();
    const std::filesystem::path html = !page ? "" : output.empty() ? run_dir / "report.html" : output;
    write_report(run_dir, html, tensorboard);
    if (page) fmt::print("report in {}\n", html.string());
    if (!tensorboard.empty()) fmt::print("TensorBoard events in {}\n", tensorboard.string());
  }
};

}  // namespace

void write_report(const std::filesystem::path& run_dir, const std::filesystem::path& html,
                  const std::filesystem::path& tensorboard) {
  const std::string python = from_environment("MOESAIC_PYTHON", MOESAIC_PYTHON);
  std::vector<std::string> words = {python, "-m", "moesaic.report", run_dir.string()};
  if (!html.empty()) words.insert(words.end(), {"--html", html.string()});
  if (!tensorboard.empty()) words.insert(words.end(), {"--tensorboard", tensorboard.string()});
  const int status = run_and_wait(std::move(words));
  if (status != 0) {
    throw IoError(fmt::format("the report of {} was not written: {} -m moesaic.report ended with status {}",
                              run_dir.string(), python, status));
  }
}

void add_report(CLI::App& app) {
  auto command = std::make_shared<ReportCommand>();
  CLI::App* sub = app.add_subcommand("report", "write the HTML report of a run, finished or not");
  sub->add_option("run_dir", command->run_dir, "directory of the training run")
      ->required()
      ->check(CLI::ExistingDirectory);
  sub->add_option("--output", command->output, "the page (default: report.html in the run directory)");
  sub->add_option(
      "--tensorboard", command->tensorboard,
      "write TensorBoard event files into this directory (no page then, unless --output is given)");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
