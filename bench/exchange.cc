// The exchange of tokens on an emulated cluster: every route, and the one that is chosen, against the fastest
// MPI_Alltoallv of k copies of every token. Jobs of ours, in which the routes take turns, and of theirs take
// turns. Every row that comes home is checked, and that the network cards saw what is claimed.
#include <algorithm>
#include <filesystem>
#include <map>

#include "bench/benchmarks.h"
#include "bench/child_process.h"
#include "bench/cluster.h"
#include "bench/exchange_cases.h"
#include "bench/layout.h"
#include "bench/mpi_choices.h"
#include "bench/turns.h"
#include "moesaic/exchange/route.h"

namespace moesaic::bench {
namespace {

// Bytes on a card beyond those claimed: headers of TCP and below; and for each two ranks whose messages cross
// it, what goes with those: requests, answers and acknowledgements of counts, lists, rows, sums and two
// barriers. Of the 140 cases measured first none needed more than the headers.
constexpr double kProtocol = 0.03;
constexpr double kBytesPerPair = 2'000;
constexpr double kJobTimeoutS = 1800;

struct Plan {
  std::vector<std::string> layouts, rates;
  std::vector<std::int64_t> tokens;
  std::vector<int> top_k;
  std::vector<bool> recorded;
  int rounds, turns_per_job;
};

Plan plan_of(const std::string& size) {
  if (size == "tiny") return {{"2x2"}, {"1gbit"}, {256}, {4}, {false, true}, 1, 2};
  return {{"4x2", "4x4", "2x4"},
          {"100mbit", "1gbit", "10gbit"},
          {32, 256, 2048, 8192},
          {1, 8},
          {false, true},
          3,
          5};
}

// 8,192 tokens a rank only where few hosts share a machine's memory.
bool fits(const Layout& layout, std::int64_t tokens) { return tokens <= 2048 || layout.hosts <= 2; }

std::vector<ExchangeCase> cases_of(const Plan& plan, const Layout& layout) {
  std::vector<ExchangeCase> cases;
  for (const std::int64_t tokens : plan.tokens) {
    for (const int top_k : plan.top_k) {
      for (const bool recorded : plan.recorded) {
        if (fits(layout, tokens)) cases.push_back({tokens, top_k, recorded});
      }
    }
  }
  return cases;
}

// What all turns of one way gave in one case.
struct Measured {
  Contender times;
  std::vector<double> nic{}, claimed{};
  std::map<std::string, int> took{};
};
using Ways = std::map<std::string, Measured>;

double median(const std::vector<double>& values) { return summarize(values).median; }

void run_job(Cluster& cluster, const Layout& layout, const std::string& who,
             const std::vector<ExchangeCase>& cases, int rounds, const std::vector<std::string>& environment,
             const std::string& suffix, std::map<std::string, Ways>& all) {
  std::vector<std::string> words = {
      (std::filesystem::path(own_path()).parent_path() / "bench_exchange").string(), who,
      std::to_string(rounds)};
  for (const ExchangeCase& c : cases) words.push_back(c.text());
  const JobOptions options{
      .ranks_per_host = layout.ranks_per_host, .timeout_s = kJobTimeoutS, .environment = environment};
  for (const nlohmann::json& line : cluster.run(words, options).lines) {
    Measured& one = all[line.at("case")][line.at("way").get<std::string>() + suffix];
    one.times.us.push_back(line.at("seconds").get<double>() * 1e6);
    one.nic.push_back(line.at("nic_bytes"));
    if (line.contains("claimed_bytes")) one.claimed.push_back(line.at("claimed_bytes"));
    if (line.contains("took")) ++one.took[line.at("took")];
  }
}

// The way of k copies with the least median becomes "k_copies"; the others go.
void keep_best_k_copies(Ways& ways) {
  auto best = ways.end();
  for (auto way = ways.begin(); way != ways.end(); ++way) {
    if (!way->first.starts_with("k_copies")) continue;
    if (best == ways.end() || median(way->second.times.us) < median(best->second.times.us)) best = way;
  }
  require(best != ways.end(), "no job of k copies gave a time");
  fmt::print(stderr, "  the fastest k copies: {}\n", best->first);
  Measured kept = std::move(best->second);
  std::erase_if(ways, [](const auto& way) { return way.first.starts_with("k_copies"); });
  ways["k_copies"] = std::move(kept);
}

std::string unclaimed(const Layout& layout, const Measured& one) {
  const int pairs = layout.ranks_per_host * (layout.ranks() - layout.ranks_per_host);
  const double nic = median(one.nic), claimed = median(one.claimed);
  if (nic >= claimed * (1 - kProtocol) && nic <= claimed * (1 + kProtocol) + kBytesPerPair * pairs) return "";
  return fmt::format("the busiest card moved {:.0f} bytes, the messages make {:.0f}", nic, claimed);
}

// "100mbit": 1e8.
double bits_per_second(const std::string& rate) {
  std::size_t end = 0;
  const double number = std::stod(rate, &end);
  const std::string unit = rate.substr(end);
  require(unit == "mbit" || unit == "gbit", "--rates {}: expected one in mbit or gbit", rate);
  return number * (unit == "gbit" ? 1e9 : 1e6);
}

void add_rows(Report& report, const Layout& layout, const std::string& name, const std::string& rate,
              Ways& ways) {
  keep_best_k_copies(ways);
  for (auto& [variant, one] : ways) one.times.variant = variant;
  const Measured& copies = ways.at("k_copies");
  const Measured* best = nullptr;  // of the fixed routes
  for (const Route route : kRoutes) {
    const Measured& one = ways.at(std::string(name_of(route)));
    if (best == nullptr || median(one.times.us) < median(best->times.us)) best = &one;
  }
  std::vector<std::string> variants;
  for (const Route route : kRoutes) variants.emplace_back(name_of(route));
  variants.insert(variants.end(), {"auto", "k_copies"});
  for (const std::string& variant : variants) {
    const Measured& one = ways.at(variant);
    const std::string wrong = one.claimed.empty() ? "" : unclaimed(layout, one);
    if (!wrong.empty()) {
      report.fail(name, variant, "time_us", "us", wrong);
      continue;
    }
    add_times(report, name, "time_us", {one.times});
    const auto add = [&](const std::string& metric, double value, const std::string& unit) {
      report.add({name, variant, metric, value, unit, true});
    };
    add("nic_bytes", median(one.nic), "bytes");
    if (variant == "k_copies") continue;
    add("line_rate_share", median(one.claimed) * 8e6 / bits_per_second(rate) / median(one.times.us), "share");
    add("time_over_k_copies", median(one.times.us) / median(copies.times.us), "ratio");
    add("nic_bytes_over_k_copies", median(one.nic) / median(copies.nic), "ratio");
    if (variant != "auto") continue;
    add("time_over_best_route", median(one.times.us) / median(best->times.us), "ratio");
    for (const auto& [route, times] : one.took) {
      add("took_" + route, static_cast<double>(times) / static_cast<double>(one.times.us.size()), "share");
    }
  }
}

void run_exchange(Report& report, const std::string& size, const ClusterOptions& options) {
  require(options.variants.empty(), "exchange compares all of its variants: leave out --variants");
  Plan plan = plan_of(size);
  if (!options.layouts.empty()) plan.layouts = options.layouts;
  if (!options.rates.empty()) plan.rates = options.rates;
  if (options.rounds > 0) plan.rounds = options.rounds;
  if (!options.tokens.empty()) {
    plan.tokens.clear();
    for (const std::string& tokens : options.tokens) plan.tokens.push_back(std::stoll(tokens));
  }
  std::vector<MpiChoice> choices = mpi_choices("alltoallv", {{"linear", 1}, {"pairwise", 2}});
  if (size == "tiny") choices.resize(1);
  for (const std::string& layout_name : plan.layouts) {
    const Layout layout = layout_of(layout_name);
    require(kExchangedExperts % layout.ranks() == 0, "--layouts {}: {} experts do not go evenly on {} ranks",
            layout_name, kExchangedExperts, layout.ranks());
    const std::vector<ExchangeCase> cases = cases_of(plan, layout);
    Cluster cluster(layout.hosts, plan.rates.front());
    for (const std::string& rate : plan.rates) {
      cluster.set_rate(rate);
      std::map<std::string, Ways> all;
      in_turn(2, plan.rounds, [&](std::size_t who, int round) {
        fmt::print(stderr, "{} {}, round {} of {}: {}\n", layout_name, rate, round + 1, plan.rounds,
                   who == 0 ? "ours" : "k copies");
        if (who == 0) return run_job(cluster, layout, "ours", cases, plan.turns_per_job, {}, "", all);
        for (const MpiChoice& choice : choices) {
          run_job(cluster, layout, "k_copies", cases, plan.turns_per_job, choice.environment,
                  " " + choice.name, all);
        }
      });
      for (const ExchangeCase& c : cases) {
        add_rows(report, layout, fmt::format("{} {} {}", layout_name, rate, c.name()), rate,
                 all.at(c.text()));
      }
    }
  }
}

}  // namespace

Benchmark exchange(const ClusterOptions& options) {
  return {
      .name = "exchange",
      .about =
          "Dispatch and combine by every route, against MPI_Alltoallv of k copies, on an emulated cluster",
      .threads = 1,
      .sizes = {"standard", "tiny"},
      .run = [=](Report& report, const std::string& size) { run_exchange(report, size, options); },
      .on_cluster = true};
}

}  // namespace moesaic::bench
