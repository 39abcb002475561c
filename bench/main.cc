// moesaic_bench: `list`, `run NAME [--size S] [--json FILE]`, and with --cluster which part to run. Exit
// status: 0 all verified, 1 a check failed, 2 misuse.
#include <fmt/ranges.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "bench/benchmarks.h"
#include "bench/cluster_steps.h"
#include "bench/exchange_step_job.h"
#include "bench/gather_job.h"
#include "bench/mpi_job.h"
#include "bench/trainer_steps.h"
#include "moesaic/core/edit_distance.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

// What the command line can change.
struct Places {
  // That of the build has torch and transformers; other peers need packages of their own.
  std::string python = MOESAIC_PYTHON, peers_python = MOESAIC_SOURCE_DIR "/.venv-peers/bin/python";
  std::string traces = MOESAIC_SOURCE_DIR "/.cache/codec-traces";
  ClusterOptions cluster;
};

std::vector<Benchmark> all_benchmarks(const Places& places) {
  return {kernels(),
          moe_layer(places.python, places.peers_python),
          gates(),
          collectives(),
          overlap(),
          train_tokens(places.python),
          codec_methods(places.peers_python, places.traces),
          gather(places.python, places.traces, places.cluster),
          exchange(places.cluster),
          exchange_step(places.peers_python, places.cluster),
          routes(),
          step(places.python, places.cluster)};
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
    fmt::print("{:<14} {} (sizes: {}{})\n", benchmark.name, benchmark.about, fmt::join(benchmark.sizes, ", "),
               benchmark.on_cluster ? "; with --cluster" : "");
  }
}

// Returns the exit status.
// What an earlier run of the benchmark left in `path`, if one did; it must be of this machine.
nlohmann::json earlier_report(const std::string& path, const Report& report) {
  if (!std::filesystem::exists(path) || std::filesystem::is_empty(path))
    return {{"rows", nlohmann::json::array()}};
  std::ifstream file(path);
  if (!file) throw IoError(fmt::format("--add: {} cannot be read", path));
  const nlohmann::json earlier = nlohmann::json::parse(file, nullptr, false), now = report.json();
  for (const char* what : {"name", "machine"}) {
    const nlohmann::json there =
        earlier.is_object() ? earlier.value(what, nlohmann::json()) : nlohmann::json();
    if (there == now[what]) continue;
    throw InvalidArgument(
        fmt::format("--add: {} has {} {}, expected {}", path, what, there.dump(), now[what].dump()));
  }
  return earlier;
}

// With the rows of cases that only the earlier one has, before its own.
nlohmann::json with_earlier_cases(nlohmann::json report, const nlohmann::json& earlier) {
  std::set<std::string> cases;
  for (const nlohmann::json& row : report["rows"]) cases.insert(row["case"]);
  nlohmann::json rows = nlohmann::json::array();
  for (const nlohmann::json& row : earlier.at("rows")) {
    if (!cases.contains(row["case"])) rows.push_back(row);
  }
  rows.insert(rows.end(), report["rows"].begin(), report["rows"].end());
  report["rows"] = std::move(rows);
  return report;
}

struct JsonFile {
  std::string path;  // empty: none
  bool add = false;  // to what it holds
};

int run(const std::string& name, const std::string& size, const JsonFile& json, bool on_cluster,
        const Places& places) {
  const std::vector<Benchmark> benchmarks = all_benchmarks(places);
  std::vector<std::string> names;
  for (const Benchmark& benchmark : benchmarks) names.push_back(benchmark.name);
  const std::string& chosen = choose("benchmark", name, names);
  const Benchmark& benchmark = *std::find_if(benchmarks.begin(), benchmarks.end(),
                                             [&](const Benchmark& b) { return b.name == chosen; });
  const std::string& chosen_size =
      size.empty() ? benchmark.sizes.front() : choose(name + " --size", size, benchmark.sizes);

  if (benchmark.on_cluster && !on_cluster) {
    throw InvalidArgument(
        name + " makes hosts on this machine, which needs root and network namespaces: say --cluster");
  }
  if (on_cluster && !benchmark.on_cluster)
    throw InvalidArgument(name + " does not run on a cluster: leave out --cluster");

  Report report(benchmark.name, benchmark.threads);
  const nlohmann::json earlier = json.add ? earlier_report(json.path, report) : nlohmann::json();
  std::ofstream file;
  if (!json.path.empty()) {
    // Before the work: a path that cannot be written should not cost a run.
    file.open(json.path, json.add ? std::ios::app : std::ios::out);
    if (!file) throw IoError(fmt::format("--json {}: cannot be written", json.path));
  }
  benchmark.run(report, chosen_size);
  if (file.is_open()) {
    file.close();
    file.open(json.path);
    file << (json.add ? with_earlier_cases(report.json(), earlier) : report.json()).dump(1) << "\n";
    file.close();
    if (!file) throw IoError(fmt::format("--json {}: writing failed", json.path));
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
  CLI::App* cluster_steps = app.add_subcommand("cluster_steps", "")->group("");
  CLI::App* gather_job = app.add_subcommand("gather_job", "")->group("");
  CLI::App* exchange_step_job = app.add_subcommand("exchange_step_job", "")->group("");
  CLI::App* train_to = app.add_subcommand("train_to", "")->group("");
  std::string name, size, python, config, checkpoints;
  moesaic::bench::JsonFile json;
  bool on_cluster = false;
  moesaic::bench::Places places;
  moesaic::bench::ClusterOptions& cluster = places.cluster;
  moesaic::bench::Turn turn;
  moesaic::bench::GatherJob gathers;
  int num_steps = 0;
  run->add_option("name", name, "A benchmark from `list`")->required();
  run->add_option("--size", size, "One of the benchmark's sizes; the first if absent");
  CLI::Option* json_file = run->add_option("--json", json.path, "Also write the figures to this file");
  run->add_flag("--add", json.add, "Keep the other cases that the file has from an earlier run")
      ->needs(json_file);
  run->add_option(
      "--python", python,
      "Runs the peers written in Python (default: .venv's; .venv-peers' for those of bench/peers/setup.sh)");
  run->add_option("--traces", places.traces,
                  "Keeps the weights that `codec` and `gather` record, or has them")
      ->capture_default_str();
  CLI::Option* flag =
      run->add_flag("--cluster", on_cluster,
                    "Make hosts on this machine, for benchmarks that run on them (docs/cluster.md)");
  const auto part = [&](const char* option, auto& value, const char* about) {
    return run->add_option(option, value, about)->needs(flag)->group("With --cluster (lists: a,b,c)");
  };
  part("--layouts", cluster.layouts, "HOSTSxRANKS_PER_HOST, such as 4x2")->delimiter(',');
  part("--rates", cluster.rates, "Of the links, such as 100mbit")->delimiter(',');
  part("--tokens", cluster.tokens, "Per rank and step")->delimiter(',');
  part("--variants", cluster.variants, "Methods and peers, as the rows name them")->delimiter(',');
  part("--rounds", cluster.rounds, "Turns of each variant")->check(CLI::PositiveNumber);
  part("--checkpoints", cluster.checkpoints,
       "Folder that keeps the checkpoints training goes on from, for the next run");
  steps->add_option("config", config)->required();
  steps->add_option("checkpoints", checkpoints)->required();
  cluster_steps->add_option("config", turn.config_file)->required();
  cluster_steps->add_option("checkpoint", turn.checkpoint)->required();
  cluster_steps->add_option("warm_up", turn.warm_up_steps)->required();
  cluster_steps->add_option("steps", turn.timed_steps)->required();
  gather_job->add_option("trace", gathers.trace)->required();
  gather_job->add_option("step", gathers.step)->required();
  gather_job->add_option("rounds", gathers.rounds)->required();
  gather_job->add_option("ways", gathers.ways)->required()->delimiter(',');
  exchange_step_job->add_option("job", config)->required();
  train_to->add_option("config", config)->required();
  train_to->add_option("steps", num_steps)->required();
  train_to->add_option("checkpoints", checkpoints)->required();
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
    if (cluster_steps->parsed()) {
      moesaic::bench::run_cluster_steps(turn);
      return 0;
    }
    if (gather_job->parsed()) {
      moesaic::bench::run_gather_job(gathers);
      return 0;
    }
    if (exchange_step_job->parsed()) {
      moesaic::bench::run_exchange_step_job(config);
      return 0;
    }
    if (train_to->parsed()) {
      moesaic::bench::run_train_to(config, num_steps, checkpoints);
      return 0;
    }
    if (under_mpi->parsed()) return moesaic::bench::run_under_mpi(name, size);
    if (!python.empty()) places.python = places.peers_python = python;
    return moesaic::bench::run(name, size, json, on_cluster, places);
  } catch (const std::exception& e) {
    fmt::print(stderr, "moesaic_bench: {}\n", e.what());
    return 2;
  }
}
