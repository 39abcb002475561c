// One MoE layer in one process: router, layout transform, experts, weighted sum. In turn with it: the bare
// products of the same experts on rows that are already permuted (floor_mm: at::mm per expert; floor_best:
// the fastest of that and other ways of multiplying), and the same layer in other programs
// (moe_layer_peers.h).
//
//   W1: D 512, F 512, 16 experts, switch gate, capacity 1.0, ReLU   (HetuMoE's layer, scaled)
//   W2: D 512, F 256, 64 experts, top-8, SwiGLU, dropless
//   W3: D 2048, F 1024, 64 experts, top-8, SwiGLU                   (OLMoE-1B-7B's layer)
// With 32 tokens and fewer (decode), reading the weights alone is timed, too. Skewed: 80% of the tokens on
// one expert, against the same layer with as many tokens on each.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include "bench/benchmarks.h"
#include "bench/layer_files.h"
#include "bench/moe_layer_floor.h"
#include "bench/moe_layer_ours.h"
#include "bench/moe_layer_peers.h"
#include "bench/temporary_folder.h"
#include "bench/turns.h"
#include "moesaic/core/error.h"

namespace moesaic::bench {
namespace {

// How long a case is timed.
struct Effort {
  int min_rounds = 3, max_rounds = 21;
  double case_us = 12e6;  // of all variants together
  double turn_us = 10e3;  // calls of one turn together, at least
};
// Workers of a library's thread pool spin for about a millisecond when their work is done.
constexpr auto kSettle = std::chrono::milliseconds(5);

const LayerShape kW1{"W1", 512, 512, 16, 1, false, 1.0},
    kW1Dropless{"W1_dropless", 512, 512, 16, 1, false, 0.0}, kW2{"W2", 512, 256, 64, 8, true, 0.0},
    kW3{"W3", 2048, 1024, 64, 8, true, 0.0}, kTiny{"tiny", 32, 16, 8, 2, true, 0.0},
    kTinySwitch{"tiny_switch", 32, 16, 8, 1, false, 1.0};

// One way of computing a case.
struct Entrant {
  std::function<double(std::int64_t calls)> us_per_call;
  Contender times;
  std::string note = {};
  LayerPeer* peer = nullptr;
  std::string failure = {};  // of a peer: why it has no times
};

Entrant in_process(const std::string& variant, std::function<void()> call) {
  const auto us_per_call = [call = std::move(call)](std::int64_t calls) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    return elapsed.count() / static_cast<double>(calls);
  };
  return {us_per_call, {variant, {}}};
}

// A peer that fails meanwhile is left out from then on.
void take_turns(std::vector<Entrant>& entrants, const Effort& effort) {
  std::vector<std::int64_t> calls(entrants.size(), 1);
  const auto turn = [&](std::size_t i) {
    Entrant& entrant = entrants[i];
    if (!entrant.failure.empty()) return 0.0;
    try {
      return entrant.us_per_call(calls[i]);
    } catch (const Error& error) {
      if (entrant.peer == nullptr) throw;
      entrant.failure = error.what();
      return 0.0;
    }
  };
  double round_us = 0;
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    double once = turn(i);  // meets cold memory and caches, which matters to short ones
    if (once < 1e6) once = std::max(turn(i), 1.0);
    calls[i] = std::max<std::int64_t>(1, std::llround(std::ceil(effort.turn_us / once)));
    round_us += once * static_cast<double>(calls[i]);
  }
  const int rounds =
      std::clamp(static_cast<int>(effort.case_us / round_us), effort.min_rounds, effort.max_rounds);
  in_turn(entrants.size(), rounds, [&](std::size_t i, int) {
    std::this_thread::sleep_for(kSettle);
    entrants[i].times.us.push_back(turn(i));
  });
}

double median_us(const Entrant& entrant) { return summarize(entrant.times.us).median; }

void add_times(Report& report, const std::string& name, const Entrant& entrant) {
  const Timing t = summarize(entrant.times.us);
  const std::string& variant = entrant.times.variant;
  report.add({name, variant, "time_us", t.median, "us", true, entrant.note});
  report.add({name, variant, "time_us_min", t.min, "us", true});
  report.add({name, variant, "time_us_p90", t.p90, "us", true});
}

// Of the products alone; backward makes two more for every one.
double flops(const LayerCase& layer) {
  const LayerShape& shape = layer.shape;
  return (layer.backward ? 3.0 : 1.0) * 2.0 *
         static_cast<double>(layer.num_tokens * shape.top_k * shape.width) *
         static_cast<double>(shape.hidden_width() + shape.expert_width);
}

double used_bytes(const LayerInputs& inputs) {
  const auto used = inputs.rows.size() - static_cast<std::size_t>(std::ranges::count(inputs.rows, 0));
  return static_cast<double>((inputs.weights.in.nbytes() + inputs.weights.out.nbytes()) * used) /
         static_cast<double>(inputs.rows.size());
}

// The peers that can do the case, with its inputs in them and their results found right.
std::vector<Entrant> load_peers(Report& report, std::vector<LayerPeer>& peers, const LayerCase& layer,
                                const LayerInputs& inputs, const LayerResults& expected,
                                const std::filesystem::path& folder) {
  std::vector<Entrant> entrants;
  for (LayerPeer& peer : peers) {
    if (!peer.has(layer)) continue;
    try {
      std::string note = peer.load(layer, inputs, folder);
      const std::string wrong = difference(peer.results(), expected, layer.dtype);
      if (!wrong.empty()) {
        report.fail(layer.name(), peer.variant(), "time_us", "us", peer.variant() + ": " + wrong);
        peer.unload();
        continue;
      }
      entrants.push_back({[&peer](std::int64_t calls) { return peer.us_per_call(calls); },
                          {peer.variant(), {}},
                          std::move(note),
                          &peer});
    } catch (const Error& error) {
      report.absent(layer.name(), peer.variant(), error.what());
    }
  }
  return entrants;
}

// Whether the entrant has times that count. Says why not; the peer's memory is free afterwards.
bool still_right(Report& report, Entrant& entrant, const LayerCase& layer, const LayerResults& expected) {
  if (entrant.peer == nullptr) return true;
  try {
    if (!entrant.failure.empty()) throw Error(entrant.failure);
    const std::string wrong = difference(entrant.peer->results(), expected, layer.dtype);
    entrant.peer->unload();
    if (wrong.empty()) return true;
    report.fail(layer.name(), entrant.times.variant, "time_us", "us", entrant.times.variant + ": " + wrong);
  } catch (const Error& error) {
    report.absent(layer.name(), entrant.times.variant, error.what());
  }
  return false;
}

void add_ratios(Report& report, const LayerCase& layer, const LayerInputs& inputs,
                const std::vector<Entrant>& entrants, const Entrant& floor) {
  const std::string name = layer.name();
  const Entrant& ours = entrants.front();
  report.add({name, "moesaic", "gflop_per_s", flops(layer) / median_us(ours) / 1e3, "GFLOP/s", true});
  const Entrant* best = nullptr;
  for (const Entrant& entrant : entrants) {
    if (&entrant != &floor) {
      report.add({name, entrant.times.variant, "time_over_floor", median_ratio(entrant.times, floor.times),
                  "ratio", true});
    }
    if (entrant.times.variant == "read_weights") {
      report.add({name, "moesaic", "gb_per_s", used_bytes(inputs) / median_us(ours) / 1e3, "GB/s", true});
      report.add(
          {name, "moesaic", "share_of_read_speed", median_ratio(entrant.times, ours.times), "ratio", true});
    }
    if (entrant.peer == nullptr) continue;
    report.add({name, "moesaic", "speedup_over_" + entrant.times.variant,
                median_ratio(entrant.times, ours.times), "ratio", true});
    if (best == nullptr || median_us(entrant) < median_us(*best)) best = &entrant;
  }
  if (best != nullptr) {
    report.add({name, "moesaic", "speedup_over_best_peer", median_ratio(best->times, ours.times), "ratio",
                true, best->times.variant});
  }
}

void measure(Report& report, std::vector<LayerPeer>& peers, const LayerCase& layer, const Effort& effort) {
  const LayerInputs inputs(layer);
  WeightSets weights(inputs, layer.backward);
  const LayerResults expected = reference_results(layer, inputs);
  malloc_trim(0);  // W3 in fp64 fills the machine, and peers need room beside us
  OneRank alone;
  OurLayer ours(layer, inputs, weights, alone.world());
  LayerFloor floor(layer, inputs, weights);
  std::string wrong = difference(ours.results(), expected, layer.dtype);
  if (!wrong.empty()) return report.fail(layer.name(), "moesaic", "time_us", "us", wrong);

  const TemporaryFolder folder;
  write_inputs(inputs, folder.path());
  std::vector<Entrant> entrants{in_process("moesaic", [&] { ours.run(); }),
                                in_process("floor_mm", [&] { floor.mm(); }),
                                in_process("bmm", [&] { floor.bmm(); })};
  if (floor.fp32_may_be_faster()) entrants.push_back(in_process("mm_in_fp32", [&] { floor.mm_in_fp32(); }));
  const std::size_t num_floors = entrants.size() - 1;
  if (layer.is_decode()) entrants.push_back(in_process("read_weights", [&] { floor.read_weights(); }));
  for (Entrant& peer : load_peers(report, peers, layer, inputs, expected, folder.path())) {
    entrants.push_back(std::move(peer));
  }
  take_turns(entrants, effort);

  wrong = difference(ours.results(), expected, layer.dtype);
  if (!wrong.empty()) return report.fail(layer.name(), "moesaic", "time_us", "us", wrong);
  std::erase_if(entrants, [&](Entrant& entrant) { return !still_right(report, entrant, layer, expected); });

  // Of the floors, floor_mm stays, and the fastest of all of them is floor_best.
  const auto floors = entrants.begin() + 1, last = floors + static_cast<std::ptrdiff_t>(num_floors);
  const auto fastest = std::min_element(
      floors, last, [](const Entrant& a, const Entrant& b) { return median_us(a) < median_us(b); });
  Entrant best = *fastest;
  best.note = best.times.variant == "floor_mm" ? "mm" : best.times.variant;
  best.times.variant = "floor_best";
  entrants.erase(floors + 2, last);
  entrants[2] = std::move(best);

  for (const Entrant& entrant : entrants) add_times(report, layer.name(), entrant);
  add_ratios(report, layer, inputs, entrants, entrants[1]);
}

// Ours, skewed and balanced in turn.
void measure_skew(Report& report, LayerCase layer, const Effort& effort) {
  struct Side {
    LayerInputs inputs;
    WeightSets weights;
    OneRank alone;
    OurLayer ours;
    LayerResults expected;
    explicit Side(const LayerCase& layer)
        : inputs(layer),
          weights(inputs, layer.backward),
          ours(layer, inputs, weights, alone.world()),
          expected(reference_results(layer, inputs)) {}
  };
  layer.spread = Spread::kBalanced;
  Side balanced(layer);
  layer.spread = Spread::kSkewed;
  Side skewed(layer);
  const auto check = [&] {
    const std::string wrong = difference(skewed.ours.results(), skewed.expected, layer.dtype);
    return wrong.empty() ? difference(balanced.ours.results(), balanced.expected, layer.dtype) : wrong;
  };
  std::string wrong = check();
  std::vector<Entrant> entrants{in_process("moesaic", [&] { skewed.ours.run(); }),
                                in_process("moesaic_balanced", [&] { balanced.ours.run(); })};
  if (wrong.empty()) {
    take_turns(entrants, effort);
    wrong = check();
  }
  if (!wrong.empty()) return report.fail(layer.name(), "moesaic", "time_us", "us", wrong);
  for (const Entrant& entrant : entrants) add_times(report, layer.name(), entrant);
  report.add({layer.name(), "moesaic", "time_over_balanced",
              median_ratio(entrants[0].times, entrants[1].times), "ratio", true});
}

std::vector<LayerCase> cases_of(const std::string& size) {
  std::vector<LayerCase> cases;
  if (size == "tiny") {
    for (const bool backward : {false, true}) cases.push_back({kTiny, 40, at::kFloat, backward});
    cases.push_back({kTiny, 40, at::kBFloat16, true, 2});
    cases.push_back({kTinySwitch, 40, at::kFloat, true});
    cases.push_back({kTiny, 40, at::kFloat, true, 2, Spread::kSkewed});
    return cases;
  }
  const auto wanted = [&](const char* part, at::ScalarType dtype) {
    return size == "full" || size == part || size == (dtype == at::kFloat ? "fp32" : "bf16");
  };
  for (const int threads : {1, 2}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto forward = [&](const char* part, const LayerShape& shape, std::int64_t tokens) {
        if (wanted(part, dtype)) cases.push_back({shape, tokens, dtype, /*backward=*/false, threads});
      };
      const auto both_passes = [&](const char* part, const LayerShape& shape, std::int64_t tokens) {
        forward(part, shape, tokens);
        if (wanted(part, dtype)) cases.push_back({shape, tokens, dtype, /*backward=*/true, threads});
      };
      both_passes("W1_4096", kW1, 4096);
      both_passes("W1_32768", kW1, 32768);
      both_passes("W2_2048", kW2, 2048);
      both_passes("W2_256", kW2, 256);
      forward("decode", kW2, 32);
      forward("decode", kW2, 1);
      if (dtype == at::kFloat) continue;
      forward("W3_512", kW3, 512);
      forward("decode", kW3, 8);
    }
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (!wanted("skew", dtype)) continue;
    for (const bool backward : {false, true}) {
      cases.push_back({kW1Dropless, 4096, dtype, backward, 2, Spread::kSkewed});
      cases.push_back({kW2, 2048, dtype, backward, 2, Spread::kSkewed});
    }
  }
  return cases;
}

}  // namespace

Benchmark moe_layer(const std::string& python, const std::string& peers_python) {
  return {.name = "moe_layer",
          .about = "one MoE layer against the bare products of its experts, and against other programs",
          .threads = 2,
          .sizes = {"full", "fp32", "bf16", "W1_4096", "W1_32768", "W2_2048", "W2_256", "W3_512", "decode",
                    "skew", "tiny"},
          .run = [python, peers_python](Report& report, const std::string& size) {
            std::vector<LayerPeer> peers = layer_peers(python, peers_python);
            const Effort effort = size == "tiny" ? Effort{.max_rounds = 3, .turn_us = 0} : Effort{};
            for (const LayerCase& layer : cases_of(size)) {
              at::set_num_threads(layer.threads);
              if (layer.spread == Spread::kSkewed) {
                measure_skew(report, layer, effort);
              } else {
                measure(report, peers, layer, effort);
              }
              malloc_trim(0);
            }
          }};
}

}  // namespace moesaic::bench
