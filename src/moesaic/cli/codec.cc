#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/cli/commands.h"
#include "moesaic/codec/trial.h"
#include "moesaic/core/error.h"
#include "moesaic/train/weight_trace.h"

namespace moesaic::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 9;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

struct Timed {
  codec::Trial trial;
  std::vector<double> encode_s{}, decode_s{};
};

struct CodecCommand {
  std::filesystem::path folder, json;
  std::vector<std::string> methods;
  int threads = 1;

  void run() const;
  Json step(const TraceIndex& index, std::int64_t number) const;
  std::vector<Timed> time_in_turns(const std::vector<codec::UnitStep>& units, double& copy_s) const;
};

// Checked first; then all of them and a plain copy of the words, round by round, so that a busy moment of the
// machine falls on all.
std::vector<Timed> CodecCommand::time_in_turns(const std::vector<codec::UnitStep>& units,
                                               double& copy_s) const {
  std::vector<Timed> timed;
  for (const codec::Method method : codec::kMethods) {
    if (!methods.empty() && std::ranges::find(methods, name_of(method)) == methods.end()) continue;
    timed.push_back({codec::Trial(method, units, threads)});
    const std::string wrong = timed.back().trial.check();
    if (!wrong.empty()) throw Error(fmt::format("a message does not decode to what was sent: {}", wrong));
  }
  std::vector<Buffer> copies;
  for (const codec::UnitStep& unit : units) {
    copies.emplace_back(static_cast<std::int64_t>(unit.current.size_bytes()));
  }
  const auto copy = [&] {
    codec::on_threads(threads, units.size(), [&](std::size_t i) {
      std::memcpy(copies[i].data(), units[i].current.data(), units[i].current.size_bytes());
    });
  };
  copy();  // touches the memory
  std::vector<double> copies_s;
  for (int round = 0; round < kRounds; ++round) {
    copies_s.push_back(seconds_of(copy));
    for (Timed& one : timed) {
      one.encode_s.push_back(seconds_of([&] { one.trial.encode(); }));
      one.decode_s.push_back(seconds_of([&] { one.trial.decode(); }));
    }
  }
  copy_s = median(copies_s);
  return timed;
}

Json CodecCommand::step(const TraceIndex& index, std::int64_t number) const {
  const TracedStep traced = read_traced_step(folder, index, number, UnitKind::kExpert);
  const std::vector<codec::UnitStep> units = unit_steps(traced);
  codec::ChangeStatistics statistics;
  for (const codec::UnitStep& unit : units) statistics.add(unit);
  const auto bytes = static_cast<double>(statistics.words()) * 2;
  fmt::print("\nstep {}: {} weights of {} expert units, learning rate {:.3g}\n", number, statistics.words(),
             units.size(), traced.learning_rate);
  fmt::print("  changed: {:.2f}% of the words, {:.2f}% of the exponents\n", 100 * statistics.words_changed(),
             100 * statistics.exponents_changed());
  fmt::print(
      "  entropy: {:.3f} bits a weight given the exponent; {:.3f} given also the previous difference{}\n",
      statistics.entropy_given_exponent(), statistics.entropy_given_previous(),
      traced.before.empty() ? fmt::format(" (0: step {} was not recorded)", number - 2) : "");

  double copy_s = 0;
  const std::vector<Timed> timed = time_in_turns(units, copy_s);
  const auto gbps = [&](double seconds) { return bytes / seconds / 1e9; };
  fmt::print("  {:<16}{:>12}{:>12}{:>12}{:>12}{:>12}{:>14}\n", "method", "bits/weight", "encode GB/s",
             "decode GB/s", "/ memcpy", "/ memcpy", "kept B/weight");
  Json rows = Json::array();
  for (const Timed& one : timed) {
    const double encode_s = median(one.encode_s), decode_s = median(one.decode_s);
    fmt::print("  {:<16}{:>12.3f}{:>12.2f}{:>12.2f}{:>12.3f}{:>12.3f}{:>14.1f}{}\n",
               name_of(one.trial.method()), one.trial.bits_per_word(), gbps(encode_s), gbps(decode_s),
               copy_s / encode_s, copy_s / decode_s, one.trial.kept_bytes_per_word(),
               lossless(one.trial.method()) ? "" : "  lossy");
    rows.push_back({{"method", name_of(one.trial.method())},
                    {"lossless", lossless(one.trial.method())},
                    {"bits_per_weight", one.trial.bits_per_word()},
                    {"encode_gbps", gbps(encode_s)},
                    {"decode_gbps", gbps(decode_s)},
                    {"encode_over_memcpy", copy_s / encode_s},
                    {"decode_over_memcpy", copy_s / decode_s},
                    {"kept_bytes_per_weight", one.trial.kept_bytes_per_word()}});
  }
  fmt::print("  {:<16}{:>12}{:>12.2f}{:>12.2f}\n", "memcpy", "16", gbps(copy_s), gbps(copy_s));
  return {{"step", number},
          {"learning_rate", traced.learning_rate},
          {"weights", statistics.words()},
          {"units", units.size()},
          {"previous_differences_known", !traced.before.empty()},
          {"words_changed", statistics.words_changed()},
          {"exponents_changed", statistics.exponents_changed()},
          {"entropy_given_exponent", statistics.entropy_given_exponent()},
          {"entropy_given_previous", statistics.entropy_given_previous()},
          {"memcpy_gbps", gbps(copy_s)},
          {"methods", rows}};
}

void CodecCommand::run() const {
  require(std::filesystem::is_directory(folder), "{} is no directory, expected one of train --record-weights",
          folder.string());
  require(holds_trace(folder), "{} holds no weight trace (trace.json); train --record-weights makes one",
          folder.string());
  const TraceIndex index = read_trace_index(folder);
  require(std::ranges::any_of(index.units, [](const TracedUnit& u) { return u.kind == UnitKind::kExpert; }),
          "the model of {} has no experts", folder.string());
  std::ofstream file;
  if (!json.empty()) {
    file.open(json);  // before the work
    if (!file) throw IoError(fmt::format("--json {}: cannot be written", json.string()));
  }
  Json steps = Json::array();
  for (const std::int64_t number : steps_with_reference(index)) steps.push_back(step(index, number));
  if (json.empty()) return;
  file << Json{{"trace", folder.string()}, {"threads", threads}, {"steps", steps}}.dump(1) << "\n";
  file.close();
  if (!file) throw IoError(fmt::format("--json {}: writing failed", json.string()));
}

}  // namespace

void add_codec(CLI::App& app) {
  auto command = std::make_shared<CodecCommand>();
  CLI::App* sub = app.add_subcommand(
      "codec", "what each method of the codec makes of recorded weights: bits per weight and speed");
  sub->add_option("trace", command->folder, "directory that train --record-weights wrote")->required();
  std::vector<std::string> names;
  for (const codec::Method method : codec::kMethods) names.emplace_back(name_of(method));
  sub->add_option("--methods", command->methods,
                  "of: raw,entropy,int8,exponent_reuse,residual,momentum (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  sub->add_option("--threads", command->threads, "that share the units (default: 1)")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--json", command->json, "also write the figures to this file");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
