// The gather of expert weights on an emulated cluster: every method of the codec, and raw, on weights that
// training recorded (weight_traces.h), against the fastest all-gathers of Open MPI and gloo of the same
// bytes, unit by unit. Ours and the peers take turns as jobs. Every word is checked, and so is that the
// network cards saw what is claimed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "bench/all_gather_peers.h"
#include "bench/benchmarks.h"
#include "bench/chosen.h"
#include "bench/gather_job.h"
#include "bench/layout.h"
#include "bench/turns.h"
#include "bench/weight_traces.h"

namespace moesaic::bench {
namespace {

// Bytes on a card beyond those of messages: headers of TCP and below, up to 3%; and headers, sizes and
// verdicts of a coded gather, barriers and acknowledgements.
constexpr double kProtocol = 0.03;
constexpr double kSmallMessages = 200'000;
const std::string kGloo = "gloo", kOpenMpi = "open_mpi", kOurs = "ours";

struct Plan {
  std::vector<std::string> layouts, rates, traces;
  int rounds, turns_per_job, peer_iterations;
};

Plan plan_of(const std::string& size) {
  if (size == "tiny") return {{"2x1"}, {"1gbit"}, {"lr4e-4 step5"}, 1, 1, 1};
  return {{"2x2", "4x2"}, {"100mbit", "1gbit", "10gbit"}, {"lr4e-4 step30", "lr1e-5 step30"}, 2, 3, 3};
}

// What all turns of one variant gave.
struct Measured {
  Contender times;
  std::vector<double> nic{}, claimed{}, bits{}, kept{}, cpu{}, codec{}, error{};
};

double median(const std::vector<double>& values) { return summarize(values).median; }

std::string unclaimed(const Measured& one) {
  const double nic = median(one.nic), claimed = median(one.claimed);
  if (nic >= claimed * (1 - kProtocol) && nic <= claimed * (1 + kProtocol) + kSmallMessages) return "";
  return fmt::format("the busiest card moved {:.0f} bytes, the messages make {:.0f}", nic, claimed);
}

void add_ours(const GatherRound& round, std::map<std::string, Measured>& all) {
  Measured& one = all[round.way];
  one.times.us.push_back(round.seconds * 1e6);
  one.nic.push_back(static_cast<double>(round.nic_bytes));
  one.claimed.push_back(static_cast<double>(round.claimed_bytes));
  one.bits.push_back(round.bits_per_weight);
  one.kept.push_back(round.kept_bytes_per_weight);
  one.cpu.push_back(round.cpu_seconds);
  one.codec.push_back(round.codec_seconds);
  one.error.push_back(round.relative_error);
}

// Of all units together.
void add_peer(const std::vector<AllGatherTime>& units, int times, Measured& one) {
  double seconds = 0, nic = 0;
  for (const AllGatherTime& unit : units) {
    seconds += unit.seconds;
    nic += static_cast<double>(unit.nic_received_bytes);
  }
  for (int i = 0; i < times; ++i) one.times.us.push_back(seconds * 1e6);
  one.nic.push_back(nic);
}

bool is_peer(const std::string& variant) { return variant == kGloo || variant == kOpenMpi; }

std::vector<std::string> all_variants() {
  std::vector<std::string> variants = gather_ways();
  variants.insert(variants.end(), {kGloo, kOpenMpi});
  return variants;
}

void add_rows(Report& report, const std::string& name, std::map<std::string, Measured> all) {
  std::erase_if(all, [&](const auto& entry) {
    const auto& [variant, one] = entry;
    const std::string wrong = is_peer(variant) ? "" : unclaimed(one);
    if (!wrong.empty()) report.fail(name, variant, "time_us", "us", wrong);
    return !wrong.empty();
  });
  for (const std::string& variant : all_variants()) {
    if (!all.contains(variant)) continue;
    Measured& one = all.at(variant);
    one.times.variant = variant;
    add_times(report, name, "time_us", {one.times});
    const auto add = [&](const std::string& metric, double value, const std::string& unit) {
      report.add({name, variant, metric, value, unit, true});
    };
    add("nic_bytes", median(one.nic), "bytes");
    if (is_peer(variant)) continue;
    add("bits_per_weight", median(one.bits), "bits");
    add("kept_bytes_per_weight", median(one.kept), "bytes");
    add("cpu_us", median(one.cpu) * 1e6, "us");
    if (median(one.codec) > 0) add("codec_us", median(one.codec) * 1e6, "us");
    if (median(one.error) > 0) add("relative_error", median(one.error), "ratio");
  }
  const std::vector<std::string> baselines = {"raw", "entropy", "int8", "exponent_reuse", kGloo, kOpenMpi};
  for (const std::string& variant : gather_ways()) {
    const bool baseline = std::find(baselines.begin(), baselines.end(), variant) != baselines.end();
    for (const std::string& other : baselines) {
      if (variant == other || (baseline && !is_peer(other))) continue;
      if (!all.contains(variant) || !all.contains(other)) continue;
      report.add({name, variant, "speedup_over_" + other,
                  median_ratio(all.at(other).times, all.at(variant).times), "ratio", true});
    }
  }
}

void run_gather(Report& report, const std::string& size, const std::string& python, const std::string& traces,
                const ClusterOptions& options) {
  Plan plan = plan_of(size);
  if (!options.layouts.empty()) plan.layouts = options.layouts;
  if (!options.rates.empty()) plan.rates = options.rates;
  if (options.rounds > 0) plan.rounds = options.rounds;
  const std::vector<std::string> variants = chosen("--variants", options.variants, all_variants());
  std::vector<std::string> turns;  // ours take theirs in one job
  for (const std::string& variant : variants) {
    const std::string turn = is_peer(variant) ? variant : kOurs;
    if (std::find(turns.begin(), turns.end(), turn) == turns.end()) turns.push_back(turn);
  }
  const std::vector<RecordedStep> recorded = recorded_steps(size, traces);
  for (const std::string& layout_name : plan.layouts) {
    const Layout layout = layout_of(layout_name);
    Cluster cluster(layout.hosts, plan.rates.front());
    for (const std::string& rate : plan.rates) {
      cluster.set_rate(rate);
      for (const RecordedStep& step : recorded) {
        if (std::find(plan.traces.begin(), plan.traces.end(), step.name) == plan.traces.end()) continue;
        const GatherJob job{
            .trace = step.folder, .step = step.step, .rounds = plan.turns_per_job, .ways = variants};
        std::vector<std::int64_t> bytes;
        for (const std::int64_t words : traced_words(job)) bytes.push_back(words * 2 / layout.ranks());
        const std::string name = fmt::format("{} {} {}", layout_name, rate, step.name);
        std::map<std::string, Measured> all;
        in_turn(turns.size(), plan.rounds, [&](std::size_t turn, int round) {
          const std::string& who = turns[turn];
          fmt::print(stderr, "{}, round {} of {}: {}\n", name, round + 1, plan.rounds, who);
          if (who == kOurs) {
            for (const GatherRound& one : gather_rounds(cluster, layout.ranks_per_host, job))
              add_ours(one, all);
            return;
          }
          const std::vector<AllGatherTime> units =
              who == kGloo
                  ? gloo_all_gather(cluster, python, layout.ranks_per_host, bytes, plan.peer_iterations)
                  : best_mpi_all_gather(cluster, layout.ranks_per_host, bytes, plan.peer_iterations);
          add_peer(units, plan.turns_per_job, all[who]);
        });
        add_rows(report, name, std::move(all));
      }
    }
  }
}

}  // namespace

Benchmark gather(const std::string& python, const std::string& traces, const ClusterOptions& options) {
  return {.name = "gather",
          .about =
              "Gathers of recorded expert weights, by every method, against gloo and Open MPI, on an "
              "emulated cluster",
          .threads = 1,
          .sizes = {"standard", "tiny"},
          .run = [=](Report& report,
                     const std::string& size) { run_gather(report, size, python, traces, options); },
          .on_cluster = true};
}

}  // namespace moesaic::bench
