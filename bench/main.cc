// moesaic_bench: `list`, `run NAME [--size S] [--json FILE]`. Exit status: 0 all verified, 1 a check failed,
// 2 misuse.
#include <fmt/ranges.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>

#include "bench/benchmarks.h"
#include "bench/mpi_job.h"
#include "bench/trainer_steps.h"
#include "moesaic/core/edit_distance.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

// What the command line can change.
struct Places {
  // That of the build has what train_tokens needs; others need packages of their own.
  std::string python = MOESAIC_PYTHON, peers_python = MOESAIC_SOURCE_DIR "/.venv-peers/bin/python";
  std::string traces = MOESAIC_SOURCE_DIR "/.cache/codec-traces";
};

std::vector<Benchmark> all_benchmarks(const Places& places) {
  return {kernels(),
          moe_layer(),
          collectives(),
          overlap(),
          train_tokens(places.python),
          codec_methods(places.peers_python, places.traces)};
}

// `wanted`, or InvalidArgument with the allowed names and the nearest of them.
const std::string& choose(const std::string& what, const std::string& wanted,
                          const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return *found;
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return edit_distance(wanted, a) < edit_distance(wanted, b);
  });
  throw InvalidArgument(fmt::format("{} '{}' is unknown; expected one of {} (did you mean '{}'?)", what,
                                    wanted, fmt::join(names, ", "), *nearest));
}

void list() {
  for (const Benchmark& benchmark : all_benchmarks({})) {
    fmt::print("{:<14} {} (sizes: {})\n", benchmark.name, benchmark.about, fmt::join(benchmark.sizes, ", "));
  }
}

// Returns the exit status.
int run(const std::string& name, const std::string& size, const std::string& json_path,
        const Places& places) {
  const std::vector<Benchmark> benchmarks = all_benchmarks(places);
  std::vector<std::string> names;
  for (const Benchmark& benchmark : benchmarks) names.push_back(benchmark.name);
  const std::string& chosen = choose("benchmark", name, names);
  const Benchmark& benchmark = *std::find_if(benchmarks.begin(), benchmarks.end(),
                                             [&](const Benchmark& b) { return b.name == chosen; });
  const std::string& chosen_size =
      size.empty() ? benchmark.sizes.front() : choose(name + " --size", size, benchmark.sizes);

  std::ofstream file;
  if (!json_path.empty()) {
    file.open(json_path);  // before the work: a path that cannot be written should not cost a run
    if (!file) throw IoError(fmt::format("--json {}: cannot be written", json_path));
  }
  Report report(benchmark.name, benchmark.threads);
  benchmark.run(report, chosen_size);
  if (file.is_open()) {
    file << report.json().dump(1) << "\n";
    file.close();
    if (!file) throw IoError(fmt::format("--json {}: writing failed", json_path));
  }
  return report.all_verified() ? 0 : 1;
}

}  // namespace
}  // namespace moesaic::bench

int main(int argc, char** argv) {
  // As `moesaic` does, for ours and for the baselines: memory that comes and goes keeps its pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);

  CLI::App app("Times Moesaic's parts against baselines that run in turn with them.");
  app.require_subcommand(1);
  const CLI::App* list = app.add_subcommand("list", "Name every benchmark and its sizes");
  CLI::App* run = app.add_subcommand("run", "Check and time one benchmark");
  CLI::App* steps = app.add_subcommand("steps", "")->group("");  // for benchmarks, which start it
  CLI::App* under_mpi = app.add_subcommand("under_mpi", "")->group("");
  std::string name, size, json, python, config, checkpoints;
  moesaic::bench::Places places;
  run->add_option("name", name, "A benchmark from `list`")->required();
  run->add_option("--size", size, "One of the benchmark's sizes; the first if absent");
  run->add_option("--json", json, "Also write the figures to this file");
  run->add_option("--python", python,
                  "Runs the peers written in Python (default: .venv's; .venv-peers' for ZipNN)");
  run->add_option("--traces", places.traces, "Keeps the weights that `codec` records, or has them")
      ->capture_default_str();
  steps->add_option("config", config)->required();
  steps->add_option("checkpoints", checkpoints)->required();
  under_mpi->add_option("name", name)->required();
  under_mpi->add_option("size", size)->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    if (list->parsed()) {
      moesaic::bench::list();
      return 0;
    }
    if (steps->parsed()) {
      moesaic::bench::serve_trainer_steps(config, checkpoints);
      return 0;
    }
    if (under_mpi->parsed()) return moesaic::bench::run_under_mpi(name, size);
    if (!python.empty()) places.python = places.peers_python = python;
    return moesaic::bench::run(name, size, json, places);
  } catch (const std::exception& e) {
    fmt::print(stderr, "moesaic_bench: {}\n", e.what());
    return 2;
  }
}
