#include "bench/gather_job.h"

#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "bench/child_process.h"
#include "bench/mpi_environment.h"
#include "bench/weight_traces.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/comm/mpi.h"
#include "moesaic/core/bf16.h"
#include "moesaic/core/error.h"
#include "moesaic/cost/gather_gate.h"
#include "moesaic/cost/measure.h"
#include "moesaic/shard/coded_gather.h"
#include "moesaic/train/weight_trace.h"

namespace moesaic::bench {
namespace {

constexpr double kJobTimeoutS = 1800;
constexpr std::chrono::minutes kTimeout{10};
constexpr double kCalibrationSeconds = 1;
constexpr int kSettlingRounds = 4;

using Words = std::vector<std::uint16_t>;

struct Way {
  codec::Method method;
  ReferenceMode mode;
  bool gated = false;  // momentum or raw, unit by unit, as a gate says
  std::string name() const {
    if (gated) return "auto";
    const std::string method_name(codec::name_of(method));
    return mode == ReferenceMode::kRank ? method_name + " rank" : method_name;
  }
};

// In `node` mode, and where a method keeps much, in `rank` mode too.
std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const codec::Method method : codec::kMethods) ways.push_back({method, ReferenceMode::kNode});
  ways.push_back({codec::Method::kMomentum, ReferenceMode::kRank});
  ways.push_back({codec::Method::kMomentum, ReferenceMode::kNode, true});
  return ways;
}

// One expert unit, cut over the ranks.
struct Unit {
  std::vector<std::int64_t> part_words, offsets, part_bytes;
  std::array<std::span<const std::uint16_t>, kTracedSteps> steps;
  Words whole;
  double seconds = 0;             // of its last gather, on this rank
  std::int64_t coded_before = 0;  // bytes of its gather before the timed step

  std::span<const std::uint16_t> mine(std::size_t step, int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return steps[step].subspan(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(part_words[r]));
  }
};

// `early`: the first three steps; `late`: the last three.
std::vector<Unit> cut(const std::vector<codec::UnitStep>& early, const std::vector<codec::UnitStep>& late,
                      int ranks) {
  std::vector<Unit> units;
  for (std::size_t u = 0; u < late.size(); ++u) {
    Unit unit{
        .part_words = {},
        .offsets = {},
        .part_bytes = {},
        .steps = {early[u].before, early[u].reference, late[u].before, late[u].reference, late[u].current},
        .whole = Words(late[u].current.size())};
    const auto total = static_cast<std::int64_t>(unit.whole.size());
    for (std::int64_t r = 0; r < ranks; ++r) {
      unit.offsets.push_back(total * r / ranks);
      unit.part_words.push_back(total * (r + 1) / ranks - unit.offsets.back());
      unit.part_bytes.push_back(unit.part_words.back() * 2);
    }
    units.push_back(std::move(unit));
  }
  return units;
}

std::int64_t largest(Communicator& world, std::int64_t mine) {
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> all(size);
  all_gather_v(world, std::as_bytes(std::span(&mine, 1)), std::vector<std::int64_t>(size, sizeof mine),
               std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

double relative_error(std::span<const std::uint16_t> got, std::span<const std::uint16_t> expected) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double wanted = to_float(BF16{expected[i]}), difference = to_float(BF16{got[i]}) - wanted;
    error += difference * difference;
    norm += wanted * wanted;
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

// Of this process, all threads, in user and kernel mode.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Contest {
 public:
  Contest(Communicator& world, std::vector<Unit> units) : world_(world), units_(std::move(units)) {}

  nlohmann::json round(const Way& way) {
    CodingSpace space;
    Gathers coded;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      coded.push_back(way.method == codec::Method::kRaw
                          ? nullptr
                          : std::make_unique<CodedGather>(world_, units_[u].part_words, units_[u].offsets,
                                                          way.method, way.mode, u + 1,
                                                          fmt::format("unit {}", u), space));
    }
    for (std::size_t step = 0; step + 1 < kTracedSteps; ++step) gather(coded, step);
    const std::int64_t kept_bytes = reference_bytes(coded);
    if (way.gated) leave_raw_what_the_gates_say(coded);
    for (Unit& unit : units_) std::fill(unit.whole.begin(), unit.whole.end(), std::uint16_t{0xffff});
    const std::int64_t bytes_before = coded_bytes(coded);
    const double codec_before = codec_seconds(coded);
    barrier(world_);
    const NicBytes before = nic_bytes_of_this_host();
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    gather(coded, kTracedSteps - 1);
    barrier(world_);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const double cpu = cpu_seconds() - cpu_before;
    const NicBytes after = nic_bytes_of_this_host();
    const std::int64_t bytes = coded_bytes(coded) - bytes_before + raw_bytes(coded);
    if (way.gated) tell_gates(coded);
    return {
        {"way", way.name()},
        {"seconds", elapsed.count()},
        {"nic_bytes", largest(world_, std::max(after.sent - before.sent, after.received - before.received))},
        {"claimed_bytes", claimed(bytes)},
        {"bits_per_weight", 8.0 * total(bytes) / static_cast<double>(words())},
        {"kept_bytes_per_weight", total(kept_bytes) / world_.size() / static_cast<double>(words())},
        {"cpu_seconds", total(static_cast<std::int64_t>(cpu * 1e6)) / 1e6},
        {"codec_seconds",
         static_cast<double>(
             largest(world_, static_cast<std::int64_t>((codec_seconds(coded) - codec_before) * 1e9))) /
             1e9},
        {"relative_error", check(way)}};
  }

 private:
  using Gathers = std::vector<std::unique_ptr<CodedGather>>;  // by unit; null: raw

  void gather(const Gathers& coded, std::size_t step) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      const auto start = std::chrono::steady_clock::now();
      const auto mine = unit.mine(step, world_.rank());
      if (coded[u] == nullptr) {
        std::vector<std::int64_t> offsets = unit.offsets;
        for (std::int64_t& offset : offsets) offset *= 2;
        all_gather_v(world_, std::as_bytes(mine), unit.part_bytes,
                     std::as_writable_bytes(std::span(unit.whole)), offsets);
      } else {
        coded[u]->run(mine, unit.whole, step + 1);
      }
      unit.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  }

  void leave_raw_what_the_gates_say(Gathers& coded) {
    if (gates_.empty()) {
      const Calibration calibration = calibrate(world_, {.budget_s = kCalibrationSeconds});
      for (const Unit& unit : units_) {
        gates_.emplace_back("", calibration,
                            GatherShape{.topology = world_.topology(),
                                        .words_of_rank = unit.part_words,
                                        .mode = ReferenceMode::kNode,
                                        .slices = static_cast<int>(
                                            CodedGather::slices_of(std::ranges::max(unit.part_words)))});
      }
    }
    ++gated_steps_;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (gates_[u].choose(gated_steps_) == codec::Method::kRaw) coded[u].reset();
      units_[u].coded_before = coded[u] == nullptr ? 0 : coded[u]->counts().coded_bytes;
    }
  }
  void tell_gates(const Gathers& coded) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const double slowest =
          static_cast<double>(largest(world_, static_cast<std::int64_t>(units_[u].seconds * 1e9))) / 1e9;
      const std::int64_t bytes =
          coded[u] == nullptr ? 0 : coded[u]->counts().coded_bytes - units_[u].coded_before;
      gates_[u].observe(gated_steps_, gates_[u].decision().chosen, slowest,
                        static_cast<std::int64_t>(total(bytes)));
    }
  }

  static std::int64_t coded_bytes(const Gathers& coded) {
    std::int64_t bytes = 0;
    for (const auto& one : coded) bytes += one == nullptr ? 0 : one->counts().coded_bytes;
    return bytes;
  }
  static double codec_seconds(const Gathers& coded) {
    double seconds = 0;
    for (const auto& one : coded) {
      if (one != nullptr) seconds += one->counts().encode_seconds + one->counts().decode_seconds;
    }
    return seconds;
  }
  static std::int64_t reference_bytes(const Gathers& coded) {
    std::int64_t bytes = 0;
    for (const auto& one : coded) bytes += one == nullptr ? 0 : one->reference_bytes();
    return bytes;
  }
  std::int64_t raw_bytes(const Gathers& coded) const {
    std::int64_t bytes = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (coded[u] == nullptr) bytes += units_[u].part_bytes[static_cast<std::size_t>(world_.rank())];
    }
    return bytes;
  }
  std::int64_t words() const {
    std::int64_t words = 0;
    for (const Unit& unit : units_) words += static_cast<std::int64_t>(unit.whole.size());
    return words;
  }
  double total(std::int64_t mine) const {
    std::vector<std::int64_t> sum = {mine};
    all_reduce(world_, std::span(sum));
    return static_cast<double>(sum[0]);
  }
  // Every part crosses to every other node once: out of its host so often, into the others once.
  std::int64_t claimed(std::int64_t mine) const {
    const Topology& topology = world_.topology();
    std::vector<std::int64_t> by_node(static_cast<std::size_t>(topology.num_nodes()));
    by_node[static_cast<std::size_t>(topology.node_of(world_.rank()))] = mine;
    all_reduce(world_, std::span(by_node));
    std::int64_t sum = 0, most = 0;
    for (const std::int64_t bytes : by_node) sum += bytes;
    for (const std::int64_t bytes : by_node) {
      most = std::max({most, bytes * (topology.num_nodes() - 1), sum - bytes});
    }
    return most;
  }
  // Collective: the largest error of any rank. CorruptData where a lossless way has changed a word.
  double check(const Way& way) const {
    double worst = 0;
    for (const Unit& unit : units_) {
      if (std::equal(unit.whole.begin(), unit.whole.end(), unit.steps.back().begin())) continue;
      if (codec::lossless(way.method))
        throw CorruptData(way.name() + ": a rank got other words than were sent");
      worst = std::max(worst, relative_error(unit.whole, unit.steps.back()));
    }
    return static_cast<double>(largest(world_, static_cast<std::int64_t>(worst * 1e12))) / 1e12;
  }

  Communicator& world_;
  std::vector<Unit> units_;
  std::vector<GatherGate> gates_;
  std::int64_t gated_steps_ = 0;
};

void contest(Transport& transport, const GatherJob& job) {
  Communicator world(transport, discover_topology(transport), kTimeout);
  const TraceIndex index = read_trace_index(job.trace);
  const TracedStep early = read_traced_step(job.trace, index, job.step - 2, UnitKind::kExpert);
  const TracedStep late = read_traced_step(job.trace, index, job.step, UnitKind::kExpert);
  Contest contest(world, cut(unit_steps(early), unit_steps(late), world.size()));
  std::vector<Way> ways = all_ways();
  std::erase_if(ways, [&](const Way& way) {
    return std::find(job.ways.begin(), job.ways.end(), way.name()) == job.ways.end();
  });
  // A gate settles: it does not believe its first steps, nor what momentum takes at first.
  for (const Way& way : ways) {
    for (int i = 0; way.gated && i < kSettlingRounds; ++i) contest.round(way);
  }
  for (int round = 0; round < job.rounds; ++round) {
    for (std::size_t turn = 0; turn < ways.size(); ++turn) {
      const nlohmann::json line = contest.round(ways[(static_cast<std::size_t>(round) + turn) % ways.size()]);
      if (world.rank() != 0) continue;
      fmt::print("{}\n", line.dump());
      std::fflush(stdout);
    }
  }
}

}  // namespace

std::vector<std::string> gather_ways() {
  std::vector<std::string> names;
  for (const Way& way : all_ways()) names.push_back(way.name());
  return names;
}

std::vector<std::int64_t> traced_words(const GatherJob& job) {
  std::vector<std::int64_t> words;
  for (const TracedUnit& unit : read_trace_index(job.trace).units) {
    if (unit.kind == UnitKind::kExpert) words.push_back(unit.words);
  }
  return words;
}

std::vector<GatherRound> gather_rounds(Cluster& cluster, int ranks_per_host, const GatherJob& job) {
  const std::vector<std::string> words = {own_path(),
                                          "gather_job",
                                          job.trace.string(),
                                          std::to_string(job.step),
                                          std::to_string(job.rounds),
                                          fmt::format("{}", fmt::join(job.ways, ","))};
  const JobOptions options{.ranks_per_host = ranks_per_host, .timeout_s = kJobTimeoutS};
  std::vector<GatherRound> rounds;
  for (const nlohmann::json& line : cluster.run(words, options).lines) {
    rounds.push_back({.way = line.at("way"),
                      .seconds = line.at("seconds"),
                      .nic_bytes = line.at("nic_bytes"),
                      .claimed_bytes = line.at("claimed_bytes"),
                      .bits_per_weight = line.at("bits_per_weight"),
                      .kept_bytes_per_weight = line.at("kept_bytes_per_weight"),
                      .cpu_seconds = line.at("cpu_seconds"),
                      .codec_seconds = line.at("codec_seconds"),
                      .relative_error = line.at("relative_error")});
  }
  return rounds;
}

void run_gather_job(const GatherJob& job) {
  prefer_mpi_environment();
  const std::unique_ptr<Transport> transport = make_mpi_transport();
  try {
    contest(*transport, job);
  } catch (const std::exception& error) {
    fmt::print("{}\n",
               nlohmann::json{{"error", fmt::format("rank {}: {}", transport->rank(), error.what())}}.dump());
    std::fflush(stdout);
    transport->abort(error.what());
    throw;
  }
}

}  // namespace moesaic::bench
