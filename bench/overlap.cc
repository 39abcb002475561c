// A training step with gathers and reduces behind the computation, and without (comm.overlap), in turn: two
// trainers in every rank, from the same weights on the same data. Their losses must have the same bits. 2
// ranks of one thread, as threads and under MPI, at the speed of memory, where there is little to hide; and
// as threads behind an emulated link (paced_transport.h), where there is.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "bench/benchmarks.h"
#include "bench/mpi_job.h"
#include "bench/paced_transport.h"
#include "bench/turns.h"
#include "moesaic/comm/collectives.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/train/threads.h"
#include "moesaic/train/trainer.h"

namespace moesaic::bench {
namespace {

constexpr int kRanks = 2;
constexpr std::chrono::milliseconds kTimeout{600'000};

Config configuration(const std::string& size, const std::string& experts) {
  std::vector<std::string> overrides = {fmt::format("parallel.experts=\"{}\"", experts), "data.seq_len=256",
                                        "parallel.threads_per_rank=1"};
  if (size == "tiny") {
    for (const char* smaller :
         {"model.d_model=32", "model.vocab_size=256", "moe.num_experts=4", "moe.top_k=2", "moe.d_expert=16",
          "data.seq_len=16", "train.batch_tokens=64"}) {
      overrides.emplace_back(smaller);
    }
  }
  return load_config(std::filesystem::path(MOESAIC_SOURCE_DIR) / "bench/small_olmoe.toml", overrides);
}

// On every rank. Only rank 0's report is looked at.
void compare(Report& report, Transport& transport, const std::string& name, const std::string& size,
             const std::string& experts) {
  limit_compute_threads(1);
  const Config config = configuration(size, experts);
  Config waiting_config = config;
  waiting_config.comm.overlap = false;
  Communicator world(transport, Topology::one_node(transport.world_size()), kTimeout);
  Trainer overlapped(config, world), waiting(waiting_config, world);
  std::vector<double> losses, waiting_losses;
  for (Trainer* trainer : {&overlapped, &waiting}) {
    trainer->model().initialise(static_cast<std::uint64_t>(config.train.seed));
  }
  const auto steps_of = [](Trainer& trainer, std::vector<double>& seen) {
    return [&trainer, &seen] { seen.push_back(trainer.step().loss); };
  };
  const auto together = [&world] { barrier(world); };
  std::vector<Contender> contenders = {{"overlap", steps_of(overlapped, losses), together},
                                       {"no_overlap", steps_of(waiting, waiting_losses), together}};
  for (Contender& contender : contenders) contender.run();  // pages and caches
  take_turns(contenders, size == "tiny" ? 2 : 7);
  if (losses != waiting_losses) {
    report.fail(name, "overlap", "step_us", "us", "the losses are not those of the run without overlap");
    return;
  }
  add_times(report, name, "step_us", contenders);
  report.add({name, "overlap", "step_time_over_no_overlap", median_ratio(contenders[0], contenders[1]),
              "ratio", true});
}

void on_threads(Report& report, const std::string& name, const std::string& size, const std::string& experts,
                std::optional<LinkSpeed> link) {
  run_inproc(kRanks, [&](Transport& transport) {
    Report silent("overlap", 1, nullptr);
    const std::unique_ptr<Transport> paced = link ? make_paced_transport(transport, *link) : nullptr;
    compare(transport.rank() == 0 ? report : silent, paced ? *paced : transport, name, size, experts);
  });
}

void run_overlap(Report& report, const std::string& size) {
  const LinkSpeed gigabit{1e9, std::chrono::microseconds(50)};
  for (const std::string experts : {"gather", "exchange"}) {
    on_threads(report, "inproc W2 " + experts, size, experts, std::nullopt);
    on_threads(report, "inproc W2 " + experts + " emulated 1gbit", size, experts, gigabit);
  }
  add_rows_of_mpi_job(report, kRanks, "overlap", size);
}

}  // namespace

void overlap_under_mpi(Report& report, Transport& transport, const std::string& size) {
  for (const std::string experts : {"gather", "exchange"}) {
    compare(report, transport, "mpi W2 " + experts, size, experts);
  }
}

Benchmark overlap() {
  return {.name = "overlap",
          .about = "A training step with and without overlap: threads, MPI, and an emulated 1 Gb/s link",
          .threads = kRanks,
          .sizes = {"standard", "tiny"},
          .run = run_overlap};
}

}  // namespace moesaic::bench
