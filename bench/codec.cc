// Every method of the codec on weights that training recorded, one thread: bits per weight, and the speed of
// whole messages with checksums, their tables measured anew or kept; in turn with memcpy of the same words
// and with ZipNN (bench/peers/zipnn_codec.py), which is a child process of one thread.
//
// The traces are made by `moesaic train --record-weights`, once: the demo model with 64 experts and top-4,
// 8,192 tokens a step, at lr 4e-4, and from its checkpoint on at 1e-5. Messages are decoded and compared
// before and after they are timed.
#include "moesaic/codec/trial.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "bench/benchmarks.h"
#include "bench/child_process.h"
#include "bench/turns.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/train/weight_trace.h"

namespace moesaic::bench {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// A stretch of one run, and the steps of it to look at.
struct Stretch {
  std::string name;                 // "lr4e-4"
  std::int64_t first = 0;           // steps that the run had made before it
  std::vector<std::int64_t> steps;  // counted from the stretch's start
  Words arguments;                  // of `moesaic train`
};

struct Workload {
  std::vector<Stretch> stretches;
  int rounds;
};

Workload workload_of(const std::string& size) {
  const bool tiny = size == "tiny";
  Words start = {"--ranks", "1"};
  const auto set = [](Words& arguments, const Words& values) {
    for (const std::string& value : values) arguments.insert(arguments.end(), {"--set", value});
  };
  set(start, {"moe.num_experts=64", "moe.top_k=4", "parallel.experts=\"gather\"", "optim.lr=4e-4",
              "optim.warmup_steps=20", "optim.final_lr_fraction=0.1", "train.steps=220", "train.eval_every=0",
              "train.eval_tokens=1024", "checkpoint.every=0"});
  Words fine_tuning = {"--resume"};
  set(fine_tuning, {"optim.lr=1e-5", "optim.schedule=\"constant\""});
  if (tiny) {
    set(start, {"model.d_model=32", "moe.d_expert=16", "moe.num_experts=8", "train.batch_tokens=128",
                "train.stop_at=5"});
    set(fine_tuning, {"train.stop_at=9"});
    return {{{"lr4e-4", 0, {5}, start}, {"lr1e-5", 5, {4}, fine_tuning}}, 3};
  }
  set(start, {"parallel.threads_per_rank=2", "train.batch_tokens=8192", "train.stop_at=120"});
  set(fine_tuning, {"train.stop_at=150"});
  return {{{"lr4e-4", 0, {5, 30, 120}, start}, {"lr1e-5", 120, {30}, fine_tuning}}, 15};
}

Words command_of(const Stretch& stretch, const fs::path& folder) {
  Words words = {(fs::path(own_path()).parent_path() / "moesaic").string(), "train"};
  if (stretch.first == 0) words.insert(words.end(), {"--config", MOESAIC_SOURCE_DIR "/configs/demo.toml"});
  words.insert(words.end(), stretch.arguments.begin(), stretch.arguments.end());
  std::vector<std::int64_t> recorded;
  for (const std::int64_t step : stretch.steps) {
    for (const std::int64_t before : {2, 1, 0}) recorded.push_back(stretch.first + step - before);
  }
  words.insert(words.end(), {"--run-dir", (folder / "run").string(), "--no-report", "--record-weights",
                             (folder / stretch.name).string(), "--record-steps",
                             fmt::format("{}", fmt::join(recorded, ","))});
  return words;
}

// What the traces of a workload hang on: another recipe gives other traces.
std::string recipe_of(const Workload& workload) {
  std::string text;
  for (const Stretch& stretch : workload.stretches) {
    text += fmt::format("{} {}: {}\n", stretch.name, fmt::join(stretch.steps, ","),
                        fmt::join(stretch.arguments, " "));
  }
  return text;
}

// The traces in `folder`, made there unless they are.
void record(const Workload& workload, const fs::path& folder) {
  const std::string recipe = recipe_of(workload);
  if (fs::exists(folder / "recipe.txt")) {
    if (read_text(folder / "recipe.txt") == recipe) return;
    throw Error(fmt::format("{} holds traces of another recipe: remove it, or choose another --traces",
                            folder.string()));
  }
  const fs::path staged = folder.string() + ".tmp";
  fs::remove_all(staged);
  fs::create_directories(staged);
  const auto start = std::chrono::steady_clock::now();
  fmt::print("recording weights into {}: minutes of training\n", folder.string());
  for (const Stretch& stretch : workload.stretches) {
    ChildProcess trainer("moesaic train", command_of(stretch, staged));
    while (!trainer.receive_or_end().is_null()) {
    }
  }
  write_text_synced(staged / "recipe.txt", recipe);
  rename_path(staged, folder);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print("recorded in {:.0f} s\n", took.count());
}

// ---- the peer ----

const std::vector<std::string> kZipNN = {"zipnn", "zipnn_delta"};

// Not there where it is not installed, which is said.
std::unique_ptr<ChildProcess> start_zipnn(const std::string& python, const fs::path& folder,
                                          std::int64_t step, const TraceIndex& index) {
  Words words = {python, MOESAIC_SOURCE_DIR "/bench/peers/zipnn_codec.py",
                 (folder / image_name(step - 1)).string(), (folder / image_name(step)).string()};
  for (const TracedUnit& unit : index.units) {
    if (unit.kind == UnitKind::kExpert) words.push_back(unit.name);
  }
  try {
    auto process = std::make_unique<ChildProcess>("zipnn", words, Words{"OMP_NUM_THREADS=1"});
    process->receive();
    return process;
  } catch (const Error& error) {
    fmt::print(stderr, "no figures of ZipNN: {}; bench/peers/setup.sh zipnn installs it\n", error.what());
    return nullptr;
  }
}

// ---- one step ----

struct Side {
  std::string variant;
  double bits_per_weight;
  std::size_t encode, decode;                   // among the contenders
  std::optional<std::size_t> encode_kept = {};  // with the tables that both ends hold already
};

void add_rows(Report& report, const std::string& name, double bytes, const std::vector<Side>& sides,
              const std::vector<Contender>& contenders) {
  const Contender& copy = contenders.front();
  const auto add_speed = [&](const std::string& variant, const std::string& metric, const Contender& c) {
    const Timing us = summarize(c.us);
    report.add({name, variant, metric, bytes / us.median / 1e3, "GB/s", true});
    report.add({name, variant, metric + "_best", bytes / us.min / 1e3, "GB/s", true});
  };
  for (const Side& side : sides) {
    const Contender &encode = contenders[side.encode], &decode = contenders[side.decode];
    report.add({name, side.variant, "bits_per_weight", side.bits_per_weight, "bits", true});
    add_speed(side.variant, "encode_gbps", encode);
    add_speed(side.variant, "decode_gbps", decode);
    report.add({name, side.variant, "encode_over_memcpy", median_ratio(copy, encode), "ratio", true});
    report.add({name, side.variant, "decode_over_memcpy", median_ratio(copy, decode), "ratio", true});
    if (side.encode_kept) {
      const Contender& kept = contenders[*side.encode_kept];
      add_speed(side.variant, "encode_kept_tables_gbps", kept);
      report.add(
          {name, side.variant, "encode_kept_tables_over_memcpy", median_ratio(copy, kept), "ratio", true});
    }
    const auto zipnn = std::ranges::find(sides, kZipNN.front(), &Side::variant);
    if (zipnn == sides.end() || side.variant == zipnn->variant) continue;
    report.add({name, side.variant, "encode_over_zipnn", median_ratio(contenders[zipnn->encode], encode),
                "ratio", true});
    report.add({name, side.variant, "decode_over_zipnn", median_ratio(contenders[zipnn->decode], decode),
                "ratio", true});
  }
  add_speed("memcpy", "encode_gbps", copy);
}

void measure(Report& report, const std::string& name, const fs::path& folder, std::int64_t step, int rounds,
             const std::string& python) {
  const TraceIndex index = read_trace_index(folder);
  const TracedStep traced = read_traced_step(folder, index, step, UnitKind::kExpert);
  const std::vector<codec::UnitStep> units = unit_steps(traced);
  codec::ChangeStatistics statistics;
  for (const codec::UnitStep& unit : units) statistics.add(unit);
  const auto add_fact = [&](const std::string& metric, double value, const std::string& unit) {
    report.add({name, "trace", metric, value, unit, true});
  };
  add_fact("weights", static_cast<double>(statistics.words()), "weights");
  add_fact("words_changed", statistics.words_changed(), "share");
  add_fact("exponents_changed", statistics.exponents_changed(), "share");
  add_fact("entropy_given_exponent", statistics.entropy_given_exponent(), "bits");
  add_fact("entropy_given_previous", statistics.entropy_given_previous(), "bits");

  Buffer copied(statistics.words() * 2);
  std::vector<Contender> contenders = {{"memcpy", [&] {
                                          std::byte* to = copied.data();
                                          for (const codec::UnitStep& unit : units) {
                                            std::memcpy(to, unit.current.data(), unit.current.size_bytes());
                                            to += unit.current.size_bytes();
                                          }
                                        }}};
  contenders.front().run();  // touches the memory
  std::vector<Side> sides;
  const auto take_part = [&](const std::string& variant, double bits, std::function<void()> encode,
                             std::function<void()> decode) {
    sides.push_back({variant, bits, contenders.size(), contenders.size() + 1});
    contenders.push_back({variant + " encode", std::move(encode)});
    contenders.push_back({variant + " decode", std::move(decode)});
  };

  std::vector<std::unique_ptr<codec::Trial>> trials;
  bool wrong = false;
  const auto check = [&](codec::Trial& trial) {
    const std::string why = trial.check();
    if (!why.empty()) {
      report.fail(name, std::string(codec::name_of(trial.method())), "bits_per_weight", "bits", why);
    }
    wrong |= !why.empty();
  };
  for (const codec::Method method : codec::kMethods) {
    trials.push_back(std::make_unique<codec::Trial>(method, units));
    codec::Trial& trial = *trials.back();
    check(trial);
    report.add({name, std::string(codec::name_of(method)), "kept_bytes_per_weight",
                trial.kept_bytes_per_word(), "B", true});
    take_part(
        std::string(codec::name_of(method)), trial.bits_per_word(), [&trial] { trial.encode(); },
        [&trial] { trial.decode(); });
    if (method != codec::Method::kResidual && method != codec::Method::kMomentum) continue;
    trials.push_back(std::make_unique<codec::Trial>(method, units));
    codec::Trial& kept = *trials.back();
    kept.encode();
    kept.keep_tables();
    check(kept);
    sides.back().encode_kept = contenders.size();
    contenders.push_back({sides.back().variant + " encode, tables kept", [&kept] { kept.encode(); }});
  }
  const std::unique_ptr<ChildProcess> zipnn = start_zipnn(python, folder, step, index);
  for (const std::string& variant : zipnn ? kZipNN : Words{}) {
    const nlohmann::json done = zipnn->ask("check " + variant);  // an error when it does not give the words
    take_part(
        variant, 8 * done.at("bytes").get<double>() / static_cast<double>(statistics.words()),
        [&zipnn, variant] { zipnn->ask("encode " + variant); },
        [&zipnn, variant] { zipnn->ask("decode " + variant); });
    contenders[sides.back().encode].before = [&zipnn, variant] { zipnn->ask("prepare " + variant); };
  }
  if (wrong) return;
  take_turns(contenders, rounds);
  for (const auto& trial : trials) check(*trial);
  if (!wrong) add_rows(report, name, 2 * static_cast<double>(statistics.words()), sides, contenders);
}

}  // namespace

Benchmark codec_methods(const std::string& peers_python, const std::string& traces) {
  return {.name = "codec",
          .about = "The codec's methods on recorded weights, against memcpy and ZipNN, one thread",
          .threads = 1,
          .sizes = {"standard", "tiny"},
          .run = [peers_python, traces](Report& report, const std::string& size) {
            const Workload workload = workload_of(size);
            const fs::path folder = fs::absolute(traces) / size;
            record(workload, folder);
            for (const Stretch& stretch : workload.stretches) {
              for (const std::int64_t step : stretch.steps) {
                measure(report, fmt::format("{} step{}", stretch.name, step), folder / stretch.name,
                        stretch.first + step, workload.rounds, peers_python);
              }
            }
          }};
}

}  // namespace moesaic::bench
