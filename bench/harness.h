// harness.h: one case of a benchmark: checked, timed in turn with its baseline, reported.
//
// A benchmark is a function that builds its inputs and hands cases to a Report. A case that fails its check
// gets no time, and makes `moesaic_bench` exit with 1.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::bench {

// What one call moves and computes.
struct Work {
  double bytes = 0;  // read plus written
  double flops = 0;
};

struct Case {
  std::string name;  // space-separated words: "permute_rows 256x128 top2 bf16"
  Work work;
  std::function<void()> run;
  std::string baseline;  // its variant name: "memcpy"
  std::function<void()> run_baseline;
  std::string ratio = "time_over_floor";  // metric of (median ours) / (median baseline)
  // Runs it and compares; "" or what is wrong. Called before and after timing.
  std::function<std::string()> check;
};

// Microseconds of one call.
struct Timing {
  double min, median, p90;
};
Timing summarize(std::vector<double> samples);

struct Row {
  std::string name;  // of the case
  std::string variant, metric;
  double value;
  std::string unit;
  bool verified;
  std::string note = {};  // what a reader of the figure has to know; in the JSON where there is one
};

class Report {
 public:
  // Lines go to `out`; nowhere if it is null.
  Report(std::string_view name, int threads, std::FILE* out = stdout);

  // Checks the case, times it and its baseline in turn, prints one line, adds the rows.
  void measure(const Case& bench_case);
  // For figures that are not times of a call in this process. Prints one line.
  void add(Row row);
  // A case that gave a wrong result: a row without a value.
  void fail(const std::string& name, const std::string& variant, const std::string& metric,
            const std::string& unit, const std::string& why);
  // A peer that is not here or cannot do this case: a row without a value, whose note says why. Not our
  // fault: all_verified() stays as it is.
  void absent(const std::string& name, const std::string& variant, const std::string& why);

  // The rows of another report's json(): of one made in another process.
  void add_all(const nlohmann::json& report);

  bool all_verified() const { return all_verified_; }
  nlohmann::json json() const;

 private:
  void say(const std::string& line) const;

  std::string name_;
  int threads_;
  std::FILE* out_;
  std::vector<Row> rows_;
  bool all_verified_ = true;
};

struct Benchmark {
  std::string name, about;
  int threads;                     // it computes with, at most
  std::vector<std::string> sizes;  // `run` without --size takes the first
  std::function<void(Report&, const std::string& size)> run;
  bool on_cluster = false;  // `run` wants --cluster: it brings up hosts (cluster.h)
};

}  // namespace moesaic::bench
