// An MoE layer under expert parallelism, forward and backward, on an emulated cluster: ours, by the route
// that is chosen and by flat, with rows in chunks and in one piece, and DeepSpeed's over gloo. The same
// weights, tokens and links; jobs take turns. What all ranks leave is compared with the formula in fp64, or
// there is no time.
#include <algorithm>
#include <filesystem>
#include <map>

#include "bench/benchmarks.h"
#include "bench/chosen.h"
#include "bench/cluster.h"
#include "bench/exchange_step_job.h"
#include "bench/layer_files.h"
#include "bench/layout.h"
#include "bench/temporary_folder.h"
#include "bench/turns.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

struct Variant {
  std::string name;
  std::string route = "auto";
  int chunks = 0;
  bool ours = true;
};

std::vector<Variant> all_variants() {
  return {{.name = "auto"},
          {.name = "auto in one piece", .chunks = 1},
          {.name = "flat", .route = "flat"},
          {.name = "deepspeed", .ours = false}};
}

struct Plan {
  std::vector<std::string> layouts, rates, tokens_per_rank, variants;
  LayerShape shape;
  int rounds, warm_up, passes;
};

Plan plan_of(const std::string& size) {
  std::vector<std::string> names;
  for (const Variant& variant : all_variants()) names.push_back(variant.name);
  if (size == "tiny") return {{"2x1"}, {"1gbit"}, {"32"}, names, {"tiny", 64, 32, 8, 2, true, 0.0}, 1, 1, 2};
  return {{"4x2"}, {"100mbit", "1gbit"}, {"256", "1024"}, names, {"W2", 512, 256, 64, 8, true, 0.0}, 3, 2, 5};
}

struct Measured {
  Variant variant;
  Contender times;
  std::vector<double> nic_bytes{};
  std::map<std::string, int> routes{};
  std::string wrong{}, absent{};
};

double median(const std::vector<double>& values) { return summarize(values).median; }

void take_turn(Cluster& cluster, Measured& one, ExchangeStepJob job, const std::string& python,
               const LayerResults& expected, const std::string& where) {
  job.route = one.variant.route;
  job.chunks = one.variant.chunks;
  std::vector<ExchangeStep> passes;
  try {
    passes = one.variant.ours ? our_passes(cluster, job) : deepspeed_passes(cluster, job, python);
  } catch (const Error& error) {
    if (one.variant.ours) throw;
    one.absent = fmt::format("{}; bench/peers/setup.sh deepspeed installs it", error.what());
    fmt::print(stderr, "{}, {}: {}\n", where, one.variant.name, one.absent);
    return;
  }
  one.wrong = difference(results_of_ranks(job), expected, job.layer.dtype);
  for (const ExchangeStep& pass : passes) {
    one.times.us.push_back(pass.seconds * 1e6);
    one.nic_bytes.push_back(pass.nic_bytes);
    ++one.routes[pass.route];
  }
  fmt::print(stderr, "{}, {}: {:.1f} ms, {:.2f} MB\n", where, one.variant.name, median(one.times.us) / 1e3,
             median(one.nic_bytes) / 1e6);
}

void add_rows(Report& report, const std::string& name, const std::vector<Measured>& all) {
  const Measured* peer = nullptr;
  for (const Measured& one : all) {
    if (!one.absent.empty()) {
      report.absent(name, one.variant.name, one.absent);
    } else if (!one.wrong.empty()) {
      report.fail(name, one.variant.name, "step_us", "us", one.variant.name + ": " + one.wrong);
    } else {
      add_times(report, name, "step_us", {one.times});
      report.add({name, one.variant.name, "nic_bytes", median(one.nic_bytes), "bytes", true});
      for (const auto& [route, times] : one.routes) {
        if (!one.variant.ours) break;
        report.add({name, one.variant.name, "took_" + route,
                    static_cast<double>(times) / static_cast<double>(one.times.us.size()), "share", true});
      }
      if (!one.variant.ours) peer = &one;
    }
  }
  if (peer == nullptr) return;
  for (const Measured& one : all) {
    if (&one == peer || !one.wrong.empty()) continue;
    report.add({name, one.variant.name, "speedup_over_deepspeed", median_ratio(peer->times, one.times),
                "ratio", true});
    report.add({name, one.variant.name, "nic_bytes_over_deepspeed",
                median(one.nic_bytes) / median(peer->nic_bytes), "ratio", true});
  }
}

void run_exchange_step(Report& report, const std::string& size, const std::string& peers_python,
                       const ClusterOptions& options) {
  Plan plan = plan_of(size);
  if (!options.layouts.empty()) plan.layouts = options.layouts;
  if (!options.rates.empty()) plan.rates = options.rates;
  if (!options.tokens.empty()) plan.tokens_per_rank = options.tokens;
  plan.variants = chosen("--variants", options.variants, plan.variants);
  if (options.rounds > 0) plan.rounds = options.rounds;

  for (const std::string& layout_name : plan.layouts) {
    const Layout layout = layout_of(layout_name);
    require(plan.shape.num_experts % layout.ranks() == 0,
            "--layouts {}: {} experts do not go evenly on {} ranks", layout_name, plan.shape.num_experts,
            layout.ranks());
    Cluster cluster(layout.hosts, plan.rates.front());
    for (const std::string& tokens : plan.tokens_per_rank) {
      const LayerCase layer{plan.shape, layout.ranks() * std::stoll(tokens), at::kBFloat16,
                            /*backward=*/true};
      const LayerInputs inputs(layer);
      const LayerResults expected = reference_results(layer, inputs);
      const TemporaryFolder folder;
      write_inputs(inputs, folder.path());
      const ExchangeStepJob job{.folder = folder.path(),
                                .layer = layer,
                                .ranks = layout.ranks(),
                                .ranks_per_host = layout.ranks_per_host,
                                .warm_up = plan.warm_up,
                                .passes = plan.passes};
      for (const std::string& rate : plan.rates) {
        cluster.set_rate(rate);
        const std::string name = fmt::format("{} {} {}", layout_name, rate, tokens);
        std::vector<Measured> all;
        for (const Variant& variant : all_variants()) {
          if (std::ranges::find(plan.variants, variant.name) != plan.variants.end()) {
            all.push_back({variant, {variant.name, [] {}}});
          }
        }
        in_turn(all.size(), plan.rounds, [&](std::size_t i, int round) {
          if (!all[i].wrong.empty() || !all[i].absent.empty()) return;
          take_turn(cluster, all[i], job, peers_python, expected,
                    fmt::format("{}, round {} of {}", name, round + 1, plan.rounds));
        });
        add_rows(report, name, all);
      }
    }
  }
}

}  // namespace

Benchmark exchange_step(const std::string& peers_python, const ClusterOptions& options) {
  return {.name = "exchange_step",
          .about = "An MoE layer under expert parallelism against DeepSpeed's, on an emulated cluster",
          .threads = 1,
          .sizes = {"standard", "tiny"},
          .run = [=](Report& report,
                     const std::string& size) { run_exchange_step(report, size, peers_python, options); },
          .on_cluster = true};
}

}  // namespace moesaic::bench
