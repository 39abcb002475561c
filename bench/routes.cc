// What a dispatch and a combine cost by every route on clusters that are not here: a projection by the cost
// model that `auto` chooses by (route_price.h), from links as stated. Nothing is timed. What it is for:
// `leader` pays where messages are dear, and in an emulated cluster they are cheap.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "bench/benchmarks.h"
#include "moesaic/core/rng.h"
#include "moesaic/exchange/route_price.h"

namespace moesaic::bench {
namespace {

constexpr int kExperts = 256, kBytesPerRow = 1024;  // 512 of bf16
// What TCP and Ethernet leave of a link's rate.
constexpr double kShareOfRate = 0.956;
constexpr double kMessageInside = 2e-6, kBytesInside = 8e9, kBytesCopied = 8e9;

struct Cluster {
  const char* name;
  int nodes, ranks_per_node;
};
struct Traffic {
  std::int64_t tokens;  // of each rank
  int top_k;
};

struct Plan {
  std::vector<Cluster> clusters;
  std::vector<double> gbits, us_per_message;
  std::vector<Traffic> traffic;
};

Plan plan_of(const std::string& size) {
  if (size == "tiny") return {{{"4x4", 4, 4}}, {10}, {1, 1000}, {{8, 2}}};
  return {{{"8x8", 8, 8}, {"32x8", 32, 8}},
          {10, 100},
          {5, 20, 50},
          {{32, 1}, {32, 8}, {256, 1}, {256, 8}, {2048, 1}, {2048, 8}}};
}

// Experts drawn at random, placed in order.
ExchangeCounts counts_of(const Topology& topology, const Traffic& traffic) {
  const int ranks = topology.world_size(), nodes = topology.num_nodes();
  ExchangeCounts counts;
  counts.rows.assign(static_cast<std::size_t>(ranks * ranks), 0);
  counts.node_rows.assign(static_cast<std::size_t>(ranks * nodes), 0);
  counts.slots = counts.rows;
  counts.uncut_slots.assign(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners, on_nodes;
  const auto add_once = [](std::vector<int>& met, std::vector<std::int64_t>& sums, int row, int columns) {
    std::ranges::sort(met);
    met.erase(std::ranges::unique(met).begin(), met.end());
    for (const int column : met) ++sums[static_cast<std::size_t>(row * columns + column)];
  };
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t token = 0; token < traffic.tokens; ++token) {
      const auto key = random_key(static_cast<std::uint64_t>(rank * traffic.tokens + token), "token");
      owners.clear();
      on_nodes.clear();
      for (int k = 0; k < traffic.top_k; ++k) {
        const auto owner = static_cast<int>(random_permutation(key, kExperts, k) * ranks / kExperts);
        owners.push_back(owner);
        ++counts.slots[static_cast<std::size_t>(rank * ranks + owner)];
        if (topology.node_of(owner) != topology.node_of(rank)) on_nodes.push_back(topology.node_of(owner));
      }
      add_once(owners, counts.rows, rank, ranks);
      add_once(on_nodes, counts.node_rows, rank, nodes);
    }
  }
  return counts;
}

Calibration links_of(double gbit, double us_per_message) {
  Calibration calibration;
  calibration.between = {us_per_message * 1e-6, 8 / (kShareOfRate * gbit * 1e9)};
  calibration.inside = {kMessageInside, 1 / kBytesInside};
  calibration.copy = {kBytesCopied, kBytesCopied};
  return calibration;
}

void run_routes(Report& report, const std::string& size) {
  const Plan plan = plan_of(size);
  for (const Cluster& cluster : plan.clusters) {
    const Topology topology =
        Topology::uniform(cluster.nodes * cluster.ranks_per_node, cluster.ranks_per_node);
    const RoutePrices prices(topology);
    for (const Traffic& traffic : plan.traffic) {
      const ExchangeCounts counts = counts_of(topology, traffic);
      std::map<Route, PhaseLoads> loads;
      for (const Route route : kRoutes)
        loads.emplace(route, prices.loads(route, counts, kBytesPerRow, kBytesPerRow));
      for (const double gbit : plan.gbits) {
        for (const double us : plan.us_per_message) {
          const std::string name = fmt::format("{} {}gbit {} us {} tokens top-{}", cluster.name, gbit, us,
                                               traffic.tokens, traffic.top_k);
          const Calibration links = links_of(gbit, us);
          const double flat = loads.at(Route::kFlat).seconds(links);
          for (const auto& [route, load] : loads) {
            const std::string variant(name_of(route));
            const double seconds = load.seconds(links);
            report.add({name, variant, "projected_us", seconds * 1e6, "us", true, "a projection"});
            if (route != Route::kFlat) {
              report.add({name, variant, "projected_over_flat", seconds / flat, "ratio", true});
            }
          }
        }
      }
    }
  }
}

}  // namespace

Benchmark routes() {
  return {.name = "routes",
          .about = "What every route would cost on larger clusters, by the cost model: a projection",
          .threads = 1,
          .sizes = {"standard", "tiny"},
          .run = run_routes};
}

}  // namespace moesaic::bench
