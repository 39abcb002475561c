#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "moesaic/cli/commands.h"
#include "moesaic/cli/environment.h"
#include "moesaic/cli/launch.h"
#include "moesaic/cli/run_dir.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/cost/calibration.h"
#include "moesaic/cost/gather_gate.h"
#include "moesaic/cost/gather_price.h"
#include "moesaic/cost/measure.h"

namespace moesaic::cli {
namespace {

namespace fs = std::filesystem;

struct CalibrateCommand {
  fs::path json;
  int ranks = 0;
  int ranks_per_node = 0;
  double seconds = CalibrateOptions{}.budget_s;

  void run() const;
};

std::string link_line(std::string_view name, const Link& link, std::string_view note) {
  // 0 where the ranks are too few, or the link too fast, for bytes to show.
  const double mbits = link.seconds_per_byte > 0 ? 8e-6 / link.seconds_per_byte : 0;
  return fmt::format("  {:<16} {:>9.1f} us {:>12} {}\n", name, 1e6 * link.seconds_per_message,
                     mbits > 0 ? fmt::format("{:.1f} Mb/s", mbits) : "-", note);
}

std::string rate_line(std::string_view name, const Rate& encode, const Rate* decode, double bits) {
  const auto gb = [](double bytes_per_s) { return 1e-9 * bytes_per_s; };
  std::string line = fmt::format("  {:<16} {:>7.2f} {:>8.2f}", name, gb(encode.alone_bytes_per_s),
                                 gb(encode.together_bytes_per_s));
  if (decode != nullptr) {
    line += fmt::format(" {:>9.2f} {:>8.2f} {:>7.2f}", gb(decode->alone_bytes_per_s),
                        gb(decode->together_bytes_per_s), bits);
  }
  return line + "\n";
}

// Which way a gate begins with for units of some sizes, spread evenly, gathered forward and backward.
std::string choices(const Calibration& calibration) {
  constexpr std::int64_t kThousand = 1000;
  const Topology topology = Topology::from_nodes(calibration.node_of_rank);
  const double bits = calibration.rates_of(codec::Method::kMomentum).bits_per_word;
  std::string text = fmt::format(
      "\na step's two gathers of a unit, in ms, momentum at {:.2f} bits a weight\n"
      "  {:>11} {:<9} {:>9} {:>9} = {:>7} + {:>8} + {:>7} + {:>6}  {}\n",
      bits, "weights", "reference", "raw", "momentum", "encode", "network", "decode", "header", "choice");
  for (const std::int64_t words : {10 * kThousand, 100 * kThousand, 1000 * kThousand, 10'000 * kThousand}) {
    for (const auto& [mode, name] :
         {std::pair{ReferenceMode::kNode, "node"}, std::pair{ReferenceMode::kRank, "rank"}}) {
      const GatherShape shape{.topology = topology,
                              .words_of_rank = std::vector<std::int64_t>(calibration.node_of_rank.size(),
                                                                         words / topology.world_size()),
                              .mode = mode,
                              .regathers = 1};
      GatherGate gate("a unit", calibration, shape);
      const codec::Method choice = gate.choose(0);
      const Prediction raw = predict(calibration, shape, codec::Method::kRaw, 16);
      const Prediction coded = predict(calibration, shape, codec::Method::kMomentum, bits);
      const double less = std::min(raw.total, coded.total), more = std::max(raw.total, coded.total);
      text +=
          fmt::format("  {:>11} {:<9} {:>9.3f} {:>9.3f} = {:>7.3f} + {:>8.3f} + {:>7.3f} + {:>6.3f}  {}{}\n",
                      words, name, 1e3 * raw.total, 1e3 * coded.total, 1e3 * coded.encode,
                      1e3 * coded.network(), 1e3 * coded.decode, 1e3 * coded.header, codec::name_of(choice),
                      less > 0 ? fmt::format(", {:.1f}x faster", more / less) : "");
    }
  }
  return text;
}

std::string describe(const Calibration& calibration) {
  const Topology topology = Topology::from_nodes(calibration.node_of_rank);
  std::string text =
      fmt::format("{} ranks on {} node{}, {} cores each{}{}\n\n", topology.world_size(), topology.num_nodes(),
                  topology.num_nodes() == 1 ? "" : "s", calibration.cores,
                  calibration.machine.empty() ? "" : ", ", calibration.machine);
  text += fmt::format("  {:<16} {:>12} {:>12}\n", "link", "a message", "bandwidth");
  if (topology.world_size() > 1) {
    text += link_line(
        "between nodes", calibration.between,
        calibration.between_measured ? "of a node's card" : "not measured: all ranks are on one node");
    text += link_line("inside a node", calibration.inside, "into each rank");
  } else {
    text += "  none: there is one rank\n";
  }
  text += fmt::format("\n  {:<16} {:^16}    {}\n  {:<16} {:>7} {:>8} {:>9} {:>8} {:>7}\n", "", "encode, GB/s",
                      "decode, GB/s", "weights in bf16", "alone", "together", "alone", "together", "bits");
  for (const codec::Method method : codec::kMethods) {
    if (method == codec::Method::kRaw) continue;
    const CodecRates& rates = calibration.rates_of(method);
    const std::string name = fmt::format("{}{}", codec::name_of(method), lossless(method) ? "" : " (lossy)");
    text += rate_line(name, rates.encode, &rates.decode, rates.bits_per_word);
  }
  text += rate_line("their gradients", calibration.gradients.encode, &calibration.gradients.decode,
                    calibration.gradients.bits_per_word);
  text += rate_line("memcpy", calibration.copy, nullptr, 0);
  if (topology.world_size() > 1) text += choices(calibration);
  return text;
}

void CalibrateCommand::run() const {
  const fs::path folder = json.has_parent_path() ? json.parent_path() : fs::path(".");
  require(json.empty() || !speaks() || fs::is_directory(folder), "--json {}: {} is no directory",
          json.string(), folder.string());
  Config config;
  set_ranks(config, ranks);
  config.comm.ranks_per_node = ranks_per_node;
  std::optional<Calibration> result;  // rank 0's
  launch(config, [&](Communicator& world) {
    const Calibration measured = calibrate(world, {.budget_s = seconds, .machine = cpu_name()});
    if (world.rank() == 0) result = measured;
  });
  if (!result) return;
  fmt::print("{}", describe(*result));
  if (json.empty()) return;
  write_text_synced(json, to_json(*result));
  fmt::print("\nwritten to {}\n", json.string());
}

}  // namespace

void add_calibrate(CLI::App& app) {
  auto command = std::make_shared<CalibrateCommand>();
  CLI::App* sub = app.add_subcommand(
      "calibrate",
      "measure links and coders, and say for which units coded gathers pay; alone or under mpirun");
  sub->add_option("--ranks", command->ranks, "ranks, as threads of this process (default: 1)")->check(kRanks);
  sub->add_option("--ranks-per-node", command->ranks_per_node,
                  "ranks that count as one node (default: by host)")
      ->check(kRanks);
  sub->add_option("--seconds", command->seconds, "about how long it may take (default: 2)")
      ->check(CLI::Range(0.01, 600.0));
  sub->add_option("--json", command->json, "file for the result")->type_name("FILE");
  sub->callback([command] { command->run(); });
}

}  // namespace moesaic::cli
