// One rank of the benchmark of routes: `bench_exchange ours|ours_fp32_sums|k_copies ROUNDS CASE...` under
// mpirun. Rank 0 prints a line of JSON for each way, case and round. Without torch, so that a rank starts at
// once.
//
// A round is a dispatch and a combine; owners send rows back as they came, or as fp32 numbers. The ways take
// turns; the first round of each is not timed, but checked like all others.
#include <malloc.h>
#include <mpi.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/mpi_environment.h"
#include "bench/nic_bytes.h"
#include "bench/programs/k_copies.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/cost/measure.h"
#include "moesaic/exchange/dispatch.h"
#include "moesaic/exchange/route_price.h"

namespace moesaic::bench {
namespace {

constexpr std::chrono::minutes kTimeout{10};
constexpr double kCalibrationBudget = 2;

struct Measured {
  double seconds = 0;
  std::int64_t nic_bytes = 0;
};

template <typename Barrier, typename Run>
Measured measure(Barrier barrier, Run run) {
  barrier();
  const NicBytes before = nic_bytes_of_this_host();
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  barrier();
  const NicBytes after = nic_bytes_of_this_host();
  return {elapsed.count(), std::max(after.sent - before.sent, after.received - before.received)};
}

void print(const nlohmann::json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

std::int64_t largest(Communicator& world, std::int64_t mine) {
  const auto size = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> all(size);
  all_gather_v(world, std::as_bytes(std::span(&mine, 1)), std::vector<std::int64_t>(size, sizeof mine),
               std::as_writable_bytes(std::span(all)));
  return *std::max_element(all.begin(), all.end());
}

class Ours {
 public:
  Ours(Communicator& world, const ExchangeCase& c, DType wire, const RoutePrices& prices)
      : world_(world),
        case_(c),
        wire_(wire),
        prices_(prices),
        placement_(Placement::contiguous(kExchangedExperts, world.size(), world.size())),
        plan_(routing_of(c, world.rank())),
        x_(exchanged_rows(c, world.rank())),
        y_(x_) {
    std::vector<int> met(static_cast<std::size_t>(world.size()));
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      std::fill(met.begin(), met.end(), 0);
      for (int k = 0; k < c.top_k; ++k) {
        met[static_cast<std::size_t>(
            placement_.owner_in_group(plan_.expert_ids[static_cast<std::size_t>(t * c.top_k + k)]))] = 1;
      }
      owners_.push_back(std::accumulate(met.begin(), met.end(), 0));
    }
  }

  // route: none for auto.
  nlohmann::json round(std::optional<Route> route) {
    std::fill(y_.begin(), y_.end(), BF16{0xffff});
    Route taken = Route::kFlat;
    std::int64_t claimed = 0;
    const Measured measured = measure(
        [&] { barrier(world_); },
        [&] {
          const auto handle = go({.route = route, .prices = &prices_, .bytes_per_sum = bytes_of_row(wire_)});
          taken = handle.route;
          claimed = card_bytes(handle);
        });
    const std::int64_t wrong = largest(world_, wrong_elements(y_, world_.rank(), owners_));
    require(wrong == 0, "{}: {} elements of a rank are wrong", case_.name(), wrong);
    return {{"way", route ? name_of(*route) : "auto"},
            {"case", case_.text()},
            {"took", name_of(taken)},
            {"seconds",
             static_cast<double>(largest(world_, static_cast<std::int64_t>(measured.seconds * 1e9))) * 1e-9},
            {"nic_bytes", largest(world_, measured.nic_bytes)},
            {"claimed_bytes", claimed}};
  }

 private:
  DispatchHandle go(const DispatchOptions& options) {
    DispatchHandle handle = dispatch(
        world_, plan_, placement_, {x_.data(), DType::kBF16, case_.tokens, kExchangedWidth}, rows_, options);
    if (wire_ == DType::kF32) widen_rows(handle.num_rows());
    const Buffer& sums = wire_ == DType::kF32 ? sums_ : rows_;
    combine(world_, handle, {sums.data(), wire_, handle.num_rows(), kExchangedWidth},
            {y_.data(), DType::kBF16, case_.tokens, kExchangedWidth});
    return handle;
  }
  void widen_rows(std::int64_t num_rows) {
    sums_ = Buffer(num_rows * bytes_of_row(DType::kF32));
    for (std::int64_t i = 0; i < num_rows * kExchangedWidth; ++i) {
      sums_.as<float>()[i] = to_float(rows_.as<BF16>()[i]);
    }
  }
  static std::int64_t bytes_of_row(DType dtype) { return kExchangedWidth * size_of(dtype); }
  // Of the busiest card, without counts.
  std::int64_t card_bytes(const DispatchHandle& handle) const {
    return prices_.loads(handle.route, handle.counts, bytes_of_row(DType::kBF16), bytes_of_row(wire_))
        .card_bytes();
  }

  Communicator& world_;
  ExchangeCase case_;
  DType wire_;  // of sums
  const RoutePrices& prices_;
  Placement placement_;
  RoutingPlan plan_;
  std::vector<BF16> x_, y_;
  std::vector<int> owners_;  // of each token
  Buffer rows_, sums_;
};

void run_ours(Transport& transport, DType wire, int rounds, const std::vector<ExchangeCase>& cases) {
  Communicator world(transport, discover_topology(transport), kTimeout);
  const RoutePrices prices(world.topology(), calibrate(world, {.budget_s = kCalibrationBudget}));
  std::vector<std::optional<Route>> ways(kRoutes.begin(), kRoutes.end());
  ways.push_back(std::nullopt);
  for (const ExchangeCase& c : cases) {
    Ours ours(world, c, wire, prices);
    for (int round = -1; round < rounds; ++round) {
      for (std::size_t turn = 0; turn < ways.size(); ++turn) {
        const auto way = ways[(static_cast<std::size_t>(round + 1) + turn) % ways.size()];
        const nlohmann::json line = ours.round(way);
        if (round >= 0 && world.rank() == 0) print(line);
      }
    }
  }
}

void run_k_copies(int rounds, const std::vector<ExchangeCase>& cases) {
  MPI_Init(nullptr, nullptr);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (const ExchangeCase& c : cases) {
    KCopies copies(c, rank, ranks);
    for (int round = -1; round < rounds; ++round) {
      const Measured mine = measure([] { MPI_Barrier(MPI_COMM_WORLD); }, [&] { copies.round(); });
      std::int64_t figures[] = {copies.wrong(), mine.nic_bytes,
                                static_cast<std::int64_t>(mine.seconds * 1e9)};
      MPI_Allreduce(MPI_IN_PLACE, figures, 3, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
      require(figures[0] == 0, "{}: {} elements of a rank are wrong", c.name(), figures[0]);
      if (round < 0 || rank != 0) continue;
      print({{"way", "k_copies"},
             {"case", c.text()},
             {"seconds", static_cast<double>(figures[2]) * 1e-9},
             {"nic_bytes", figures[1]}});
    }
  }
  MPI_Finalize();
}

int run(int argc, char** argv) {
  require(argc >= 4, "expected: bench_exchange ours|ours_fp32_sums|k_copies ROUNDS CASE...");
  const int rounds = std::stoi(argv[2]);
  std::vector<ExchangeCase> cases;
  for (int i = 3; i < argc; ++i) cases.push_back(ExchangeCase::from(argv[i]));
  const std::string who = argv[1];
  require(who == "ours" || who == "ours_fp32_sums" || who == "k_copies",
          "bench_exchange {}: expected ours, ours_fp32_sums or k_copies", who);
  if (who == "k_copies") {
    run_k_copies(rounds, cases);
    return 0;
  }
  prefer_mpi_environment();
  const std::unique_ptr<Transport> transport = make_mpi_transport();
  try {
    run_ours(*transport, who == "ours" ? DType::kBF16 : DType::kF32, rounds, cases);
  } catch (const std::exception& error) {
    print({{"error", fmt::format("rank {}: {}", transport->rank(), error.what())}});
    transport->abort(error.what());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace moesaic::bench

int main(int argc, char** argv) {
  // As `moesaic` does, for ours and for the baseline: memory that comes and goes keeps its pages.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  try {
    return moesaic::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_exchange: {}\n", error.what());
    return 2;
  }
}
