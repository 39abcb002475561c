// moesaic: train, evaluate, sample from and look into Mixture-of-Experts models.
//
// Exit status: 0 done; 1 something failed while working; 2 the command line or the configuration is wrong.
#include <fmt/ranges.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/launch.h"
#include "moesaic/core/edit_distance.h"
#include "moesaic/core/error.h"

namespace {

// How long a rank leaves the first one to speak for it. mpirun needs a second to end the others.
constexpr std::chrono::seconds kFirstSpeaks{5};

// Under MPI every rank reads the same command line and configuration, so the first speaks of those. mpirun
// ends all ranks soon after one has failed: the others wait for that, and speak only when nobody ended them,
// as then their configuration alone is wrong. What only one rank's machine lacks, that rank says at once.
int fail(const std::exception& error, int status) {
  const bool misuse = status == 2;
  if (misuse && !moesaic::cli::speaks()) std::this_thread::sleep_for(kFirstSpeaks);
  fmt::print(stderr, "moesaic: error: {}\n", error.what());
  return status;
}

// Each rank that is a thread keeps every token file open: the usual 1,024 are soon used up.
void allow_many_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // refused: then it stays as it was
}

// CLI11 only says that a subcommand is required.
void require_known_subcommand(const CLI::App& app, const std::string& word) {
  if (word.empty() || word.starts_with("-")) return;
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  if (std::ranges::find(names, word) != names.end()) return;
  const std::string nearest = *std::ranges::min_element(
      names, {}, [&](const std::string& name) { return moesaic::edit_distance(name, word); });
  throw moesaic::InvalidArgument(fmt::format("unknown subcommand '{}', expected one of {}; did you mean {}?",
                                             word, fmt::join(names, ", "), nearest));
}

}  // namespace

int main(int argc, char** argv) {
  // Activations come and go with every stage: keep their pages instead of giving them back to the system each
  // time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  std::signal(SIGXFSZ, SIG_IGN);  // a file past its limit is then an error with a message, as a full disk is
  allow_many_files();

  CLI::App app{"Moesaic: Mixture-of-Experts language models on ordinary clusters"};
  app.require_subcommand(1);
  moesaic::cli::add_train(app);
  moesaic::cli::add_eval(app);
  moesaic::cli::add_generate(app);
  moesaic::cli::add_inspect(app);
  moesaic::cli::add_config(app);
  moesaic::cli::add_report(app);
  moesaic::cli::add_codec(app);
  moesaic::cli::add_calibrate(app);
  try {
    require_known_subcommand(app, argc > 1 ? argv[1] : "");
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  } catch (const moesaic::InvalidArgument& error) {
    return fail(error, 2);
  } catch (const std::exception& error) {
    return fail(error, 1);
  }
  return 0;
}
