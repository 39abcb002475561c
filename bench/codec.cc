// Every method of the codec on weights that training recorded, one thread: bits per weight, and the speed of
// whole messages with checksums, their tables measured anew or kept; in turn with memcpy of the same words
// and with ZipNN (bench/peers/zipnn_codec.py), which is a child process of one thread.
// Messages are decoded and compared before and after they are timed.
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
#include "bench/weight_traces.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/train/weight_trace.h"

namespace moesaic::bench {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

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
            for (const RecordedStep& step : recorded_steps(size, traces)) {
              measure(report, step.name, step.folder, step.step, size == "tiny" ? 3 : 15, peers_python);
            }
          }};
}

}  // namespace moesaic::bench
