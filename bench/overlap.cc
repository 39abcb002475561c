// A training step with communication behind the computation, and without (comm.overlap); and exchanged tokens
// in one chunk and in several (comm.exchange_chunks). In turn: a trainer for each in every rank, from the
// same weights on the same data. Their losses must have the same bits. 2 ranks of one thread, as threads and
// under MPI, at the speed of memory, where there is little to hide; and as threads behind an emulated link
// (paced_transport.h), where there is.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

// The last of several ways is what the others are measured against.
struct Way {
  std::string name, setting;
};
using Ways = std::vector<Way>;
const Ways kOverlap = {{"overlap", "comm.overlap=true"}, {"no_overlap", "comm.overlap=false"}};
const Ways kChunks = {{"4_chunks", "comm.exchange_chunks=4"}, {"1_chunk", "comm.exchange_chunks=1"}};

Config configuration(const std::string& size, const std::string& experts, const Way& way) {
  std::vector<std::string> overrides = {fmt::format("parallel.experts=\"{}\"", experts), "data.seq_len=256",
                                        "parallel.threads_per_rank=1", way.setting};
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
             const std::string& experts, const Ways& ways) {
  limit_compute_threads(1);
  Communicator world(transport, Topology::one_node(transport.world_size()), kTimeout);
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::vector<std::vector<double>> losses(ways.size());
  std::vector<Contender> contenders;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Config config = configuration(size, experts, ways[i]);
    trainers.push_back(std::make_unique<Trainer>(config, world));
    Trainer& trainer = *trainers.back();
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
    contenders.push_back({ways[i].name,
                          [&trainer, &seen = losses[i]] { seen.push_back(trainer.step().loss); },
                          [&world] { barrier(world); }});
  }
  for (Contender& contender : contenders) contender.run();  // pages and caches
  take_turns(contenders, size == "tiny" ? 2 : 7);
  const Way& base = ways.back();
  for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
    if (losses[i] == losses.back()) continue;
    report.fail(name, ways[i].name, "step_us", "us",
                fmt::format("the losses are not those of the run with {}", base.name));
    return;
  }
  add_times(report, name, "step_us", contenders);
  for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
    report.add({name, ways[i].name, "step_time_over_" + base.name,
                median_ratio(contenders[i], contenders.back()), "ratio", true});
  }
}

void on_threads(Report& report, const std::string& name, const std::string& size, const std::string& experts,
                const Ways& ways, std::optional<LinkSpeed> link) {
  run_inproc(kRanks, [&](Transport& transport) {
    Report silent("overlap", 1, nullptr);
    const std::unique_ptr<Transport> paced = link ? make_paced_transport(transport, *link) : nullptr;
    compare(transport.rank() == 0 ? report : silent, paced ? *paced : transport, name, size, experts, ways);
  });
}

void run_overlap(Report& report, const std::string& size) {
  const LinkSpeed gigabit{1e9, std::chrono::microseconds(50)};
  for (const std::string experts : {"gather", "exchange"}) {
    on_threads(report, "inproc W2 " + experts, size, experts, kOverlap, std::nullopt);
    on_threads(report, "inproc W2 " + experts + " emulated 1gbit", size, experts, kOverlap, gigabit);
  }
  on_threads(report, "inproc W2 chunks", size, "exchange", kChunks, std::nullopt);
  on_threads(report, "inproc W2 chunks emulated 1gbit", size, "exchange", kChunks, gigabit);
  add_rows_of_mpi_job(report, kRanks, "overlap", size);
}

}  // namespace

void overlap_under_mpi(Report& report, Transport& transport, const std::string& size) {
  for (const std::string experts : {"gather", "exchange"}) {
    compare(report, transport, "mpi W2 " + experts, size, experts, kOverlap);
  }
}

Benchmark overlap() {
  return {
      .name = "overlap",
      .about = "A training step with and without overlap and chunks: threads, MPI, an emulated 1 Gb/s link",
      .threads = kRanks,
      .sizes = {"standard", "tiny"},
      .run = run_overlap};
}

}  // namespace moesaic::bench
