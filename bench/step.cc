// Whole training steps with gathered experts on an emulated cluster: ours by every method of the gather, with
// and without overlap, and PyTorch's FSDP2 over gloo in three configurations, on the same links, from the
// same checkpoint, on the same tokens, in the same type. They take turns, round by round (cluster_steps.h).
// Lossless methods must give the bits of `raw`, and the others losses near them, or they have no time.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "bench/benchmarks.h"
#include "bench/chosen.h"
#include "bench/cluster_steps.h"
#include "bench/layout.h"
#include "bench/temporary_folder.h"
#include "bench/turns.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/cost/step_trial.h"
#include "moesaic/train/config.h"

namespace moesaic::bench {
namespace {

// Relative, of other programs and of lossy methods: bf16 keeps 8 bits, and a gate that rounds another way may
// choose another expert.
constexpr double kLossTolerance = 1e-2;
// Of everyone, so that all are timed in the same steps. The first step has no reference, the second no
// difference before it, the third measures tables that it keeps; gates change their minds from the fifth on;
// then the first trial of plain steps ends. Ways of single units may still change in the steps that are
// timed.
constexpr int kWarmUpSteps = StepTrial::kFirst + StepTrial::kPlainWarmUp + StepTrial::kMeasured;

struct Variant {
  std::string name;
  std::vector<std::string> overrides = {};  // of ours
  std::string fsdp2_mode = {};              // else a peer
  bool exact = true;                        // gives the bits of raw
  bool ours() const { return fsdp2_mode.empty(); }
};

std::vector<Variant> all_variants() {
  std::vector<Variant> variants;
  const std::string plain_gradients = "codec.gradients=\"bf16\"";
  for (const std::string method : {"raw", "entropy", "int8", "exponent_reuse", "residual", "momentum"}) {
    variants.push_back({.name = method,
                        .overrides = {fmt::format("codec.method=\"{}\"", method), plain_gradients},
                        .exact = method != "int8"});
  }
  variants.push_back({.name = "momentum entropy gradients",
                      .overrides = {"codec.method=\"momentum\"", "codec.gradients=\"entropy\""}});
  variants.push_back({.name = "auto"});  // as the configuration is when nothing is said
  variants.push_back({.name = "auto bf16 gradients", .overrides = {plain_gradients}});
  // Else the ranks of a node keep the reference together.
  variants.push_back({.name = "auto rank", .overrides = {"codec.reference=\"rank\""}});
  for (std::size_t i = 0, n = variants.size(); i < n; ++i) {
    Variant waiting = variants[i];
    waiting.name += " no overlap";
    waiting.overrides.emplace_back("comm.overlap=false");
    variants.push_back(waiting);
  }
  for (const std::string mode : {"default", "no_reshard", "prefetch"}) {
    variants.push_back({.name = "fsdp2_" + mode, .fsdp2_mode = mode, .exact = false});
  }
  return variants;
}

struct Plan {
  std::vector<std::string> layouts, rates, tokens_per_rank, variants;
  std::vector<std::string> overrides;
  int steps_before, rounds, steps_per_turn;
};

Plan plan_of(const std::string& size) {
  std::vector<std::string> names;
  for (const Variant& variant : all_variants()) names.push_back(variant.name);
  if (size == "tiny") {
    return {{"2x1"},
            {"1gbit"},
            {"32"},
            names,
            {"model.vocab_size=256", "model.num_layers=2", "model.d_model=32", "moe.num_experts=4",
             "moe.top_k=2", "moe.d_expert=16", "data.seq_len=16"},
            2,
            1,
            2};
  }
  return {{"4x2"}, {"100mbit", "1gbit"}, {"512", "2048"}, names, {}, 30, 3, 2};
}

// One variant's timed steps of all rounds.
struct Measured {
  Variant variant;
  std::filesystem::path config_file;
  Contender times;
  std::vector<ClusterStep> steps{};
  std::string wrong{};
};

std::string difference(const Measured& reference, const Measured& other) {
  std::map<std::int64_t, double> losses;
  for (const ClusterStep& step : reference.steps) losses[step.step] = step.loss;
  const double tolerance = other.variant.exact ? 0 : kLossTolerance;
  for (const ClusterStep& step : other.steps) {
    const auto expected = losses.find(step.step);
    if (expected == losses.end())
      return fmt::format("step {} is not one of {}", step.step, reference.variant.name);
    if (std::abs(step.loss - expected->second) <= tolerance * std::abs(expected->second)) continue;
    return fmt::format("the loss of step {} is {}, {} has {}", step.step, step.loss, reference.variant.name,
                       expected->second);
  }
  return "";
}

double median_of(const std::vector<ClusterStep>& steps,
                 const std::function<double(const ClusterStep&)>& what) {
  std::vector<double> values;
  for (const ClusterStep& step : steps) values.push_back(what(step));
  return summarize(std::move(values)).median;
}

void add_rows(Report& report, const std::string& name, std::vector<Measured>& all) {
  std::vector<Measured*> good;
  for (Measured& one : all) {
    if (one.wrong.empty() && &one != &all.front()) one.wrong = difference(all.front(), one);
    if (one.wrong.empty()) {
      good.push_back(&one);
    } else {
      report.fail(name, one.variant.name, "step_us", "us", one.wrong);
    }
  }
  const Measured* best_peer = nullptr;
  const auto median = [](const Measured& one) { return summarize(one.times.us).median; };
  for (Measured* one : good) {
    add_times(report, name, "step_us", {one->times});
    const auto add = [&](const std::string& metric, double value, const std::string& unit) {
      report.add({name, one->variant.name, metric, value, unit, true});
    };
    add("nic_bytes",
        median_of(one->steps, [](const ClusterStep& step) { return static_cast<double>(step.nic_bytes); }),
        "bytes");
    if (!one->variant.ours()) {
      if (best_peer == nullptr || median(*one) < median(*best_peer)) best_peer = one;
      continue;
    }
    const auto add_phase = [&](const std::string& metric, double ClusterStep::*phase) {
      add(metric, median_of(one->steps, [&](const ClusterStep& step) { return step.*phase * 1e6; }), "us");
    };
    add_phase("gather_exposed_us", &ClusterStep::gather_exposed);
    add_phase("gather_background_us", &ClusterStep::gather_background);
    add_phase("reduce_exposed_us", &ClusterStep::reduce_exposed);
    add_phase("reduce_background_us", &ClusterStep::reduce_background);
    const auto add_codec = [&](const std::string& metric, double ClusterStep::*figure,
                               const std::string& unit) {
      const double value = median_of(one->steps, [&](const ClusterStep& step) { return step.*figure; });
      if (value > 0) add(metric, value, unit);
    };
    add_codec("bits_per_weight", &ClusterStep::weight_bits, "bits");
    add_codec("bits_per_gradient", &ClusterStep::gradient_bits, "bits");
    add_codec("kept_bytes_per_weight", &ClusterStep::kept_per_weight, "B");
  }
  const auto add_ratios = [&](const std::string& metric, const Measured& slower) {
    for (const Measured* one : good) {
      if (!one->variant.ours()) continue;
      report.add({name, one->variant.name, metric, median_ratio(slower.times, one->times), "ratio", true});
    }
  };
  for (const Measured* one : good) {
    if (one->variant.name == "fsdp2_default") add_ratios("speedup_over_fsdp2_default", *one);
  }
  if (best_peer != nullptr) add_ratios("speedup_over_best_fsdp2", *best_peer);
}

void take_turn(Cluster& cluster, Measured& one, Turn turn, const std::string& python,
               const std::string& where) {
  turn.config_file = one.config_file;
  try {
    const std::vector<ClusterStep> steps = one.variant.ours()
                                               ? our_steps(cluster, turn)
                                               : fsdp2_steps(cluster, turn, python, one.variant.fsdp2_mode);
    for (const ClusterStep& step : steps) {
      one.steps.push_back(step);
      one.times.us.push_back(step.seconds * 1e6);
      fmt::print(stderr, "{}, {}, step {}: {:.2f} s, {:.1f} MB, loss {:.4f}\n", where, one.variant.name,
                 step.step, step.seconds, static_cast<double>(step.nic_bytes) / 1e6, step.loss);
    }
  } catch (const Error& error) {  // the others go on without it
    one.wrong = error.what();
    fmt::print(stderr, "{}, {}: {}\n", where, one.variant.name, one.wrong);
  }
}

// The checkpoint all go on from. With `kept` it stays there for the next time.
std::filesystem::path starting_point(const std::filesystem::path& config_file, int steps,
                                     const std::filesystem::path& folder) {
  const std::filesystem::path there = folder / fmt::format("step-{:06}", steps);
  return std::filesystem::exists(there) ? there : train_on_threads(config_file, steps, folder);
}

void run_step(Report& report, const std::string& size, const std::string& python,
              const ClusterOptions& options) {
  Plan plan = plan_of(size);
  if (!options.layouts.empty()) plan.layouts = options.layouts;
  if (!options.rates.empty()) plan.rates = options.rates;
  plan.tokens_per_rank = chosen("--tokens", options.tokens, plan.tokens_per_rank);
  plan.variants = chosen("--variants", options.variants, plan.variants);
  if (options.rounds > 0) plan.rounds = options.rounds;

  const TemporaryFolder temporary;
  const std::filesystem::path kept =
      options.checkpoints.empty() ? temporary.path() : std::filesystem::path(options.checkpoints);
  for (const std::string& layout_name : plan.layouts) {
    const Layout layout = layout_of(layout_name);
    Cluster cluster(layout.hosts, plan.rates.front());
    for (const std::string& tokens : plan.tokens_per_rank) {
      const auto config_with = [&](const std::string& file, std::vector<std::string> overrides) {
        overrides.insert(overrides.end(), plan.overrides.begin(), plan.overrides.end());
        overrides.push_back(fmt::format("parallel.ranks={}", layout.ranks()));
        overrides.push_back(fmt::format("train.batch_tokens={}", layout.ranks() * std::stoi(tokens)));
        const std::filesystem::path path = temporary.path() / (file + ".toml");
        write_text_synced(
            path, to_toml(load_config(std::filesystem::path(MOESAIC_SOURCE_DIR) / "bench/step_olmoe.toml",
                                      overrides)));
        return path;
      };
      const Turn turn{
          .config_file = {},
          .checkpoint = starting_point(config_with("start", {"moe.balance_loss=0.01"}), plan.steps_before,
                                       kept / fmt::format("{} {} {}", size, layout_name, tokens)),
          .ranks_per_host = layout.ranks_per_host,
          .warm_up_steps = kWarmUpSteps,
          .timed_steps = plan.steps_per_turn};
      for (const std::string& rate : plan.rates) {
        cluster.set_rate(rate);
        const std::string name = fmt::format("{} {} {}", layout_name, rate, tokens);
        std::vector<Measured> all;
        for (const Variant& variant : all_variants()) {
          if (std::find(plan.variants.begin(), plan.variants.end(), variant.name) == plan.variants.end())
            continue;
          all.push_back({variant, config_with(variant.name, variant.overrides), {variant.name, [] {}}});
        }
        in_turn(all.size(), plan.rounds, [&](std::size_t one, int round) {
          if (!all[one].wrong.empty()) return;
          take_turn(cluster, all[one], turn, python,
                    fmt::format("{}, round {} of {}", name, round + 1, plan.rounds));
        });
        add_rows(report, name, all);
      }
    }
  }
}

}  // namespace

Benchmark step(const std::string& python, const ClusterOptions& options) {
  return {.name = "step",
          .about = "Training steps with gathered experts against PyTorch's FSDP2, on an emulated cluster",
          .threads = 1,
          .sizes = {"standard", "tiny"},
          .run = [=](Report& report, const std::string& size) { run_step(report, size, python, options); },
          .on_cluster = true};
}

}  // namespace moesaic::bench
