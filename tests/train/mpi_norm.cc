// One step on MPI processes, under mpirun: all ranks clip by one norm, the one of the whole gradient, and the
// weights after it are those of the same step on threads. Exits non-zero, saying what differed.
#include <cmath>
#include <exception>
#include <vector>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/mpi.h"
#include "tests/comm/mpi_failure.h"
#include "tests/train/runs.h"

using namespace moesaic;
using namespace moesaic::testing;

namespace {

const std::vector<Layout> kLayouts = {
    {"2 ranks, exchange", 2, {"exchange"}},
    {"2 ranks, gather", 2, {"gather"}},
    {"4 ranks, exchange", 4, {"exchange"}},
    {"4 ranks, gather, two owners per expert", 4, {"gather"}, 2},
    {"4 ranks on 2 nodes, one layer each way", 4, {"gather", "exchange"}, 2, 2},
};

// What a rank knows after the step.
struct Norms {
  double whole, loss;
  double squares_of_shards;  // of the gradient that this rank holds, not clipped
};

double squares_of_shards(Trainer& trainer) {
  double sum = 0;
  for (const auto& unit : trainer.model().units()) {
    for (const float value : unit->gradient()) sum += static_cast<double>(value) * value;
  }
  return sum;
}

std::vector<Norms> of_all_ranks(Communicator& world, const Norms& mine) {
  std::vector<Norms> all(static_cast<std::size_t>(world.size()));
  const std::vector<std::int64_t> bytes(all.size(), sizeof(Norms));
  all_gather_v(world, std::as_bytes(std::span(&mine, 1)), bytes, std::as_writable_bytes(std::span(all)));
  return all;
}

void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}

void check(Transport& transport, const Config& config, const Outcome& one) {
  const Outcome threads = train(config, 1);
  const auto nodes = static_cast<int>(config.comm.ranks_per_node);
  const int size = transport.world_size();
  Communicator world(transport, nodes > 0 ? Topology::uniform(size, nodes) : Topology::one_node(size),
                     kTestTimeout);
  Trainer trainer(config, world);
  trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
  const StepReport report = trainer.step();

  const std::vector<Norms> norms =
      of_all_ranks(world, {report.gradient_norm, report.loss, squares_of_shards(trainer)});
  double squares = 0;
  for (const Norms& of_rank : norms) {
    expect(of_rank.whole == report.gradient_norm && of_rank.loss == report.loss,
           fmt::format("norm {} and loss {}, those of another rank {} and {}", report.gradient_norm,
                       report.loss, of_rank.whole, of_rank.loss));
    squares += of_rank.squares_of_shards;
  }
  const auto near = [](double got, double expected) { return std::abs(got - expected) <= 1e-5 * expected; };
  const auto expect_norm = [&](double norm, const char* whose) {
    expect(near(report.gradient_norm, norm),
           fmt::format("norm {}, {} {}", report.gradient_norm, whose, norm));
  };
  expect_norm(std::sqrt(squares), "that of all shards is");
  expect_norm(one.steps[0].gradient_norm, "on one rank it is");
  expect(report.gradient_norm == threads.steps[0].gradient_norm,
         fmt::format("norm {}, on threads {}", report.gradient_norm, threads.steps[0].gradient_norm));
  // Or this shows nothing: clipping is active, and by the norms of the parts it would be another.
  expect(report.gradient_norm > config.optim.clip_norm, "the norm is below the limit");
  expect(!near(std::sqrt(norms[0].squares_of_shards), report.gradient_norm),
         "rank 0 holds the whole gradient");

  TensorCollection written;
  written.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
  expect(!written.tensors().empty(), "this rank wrote no tensor");
  for (const auto& [name, values] : written.tensors())
    expect(values == threads.parameters.at(name), name + " after the step is not that of threads");
}

}  // namespace

int main() {
  std::unique_ptr<Transport> transport;
  try {
    transport = make_mpi_transport();
    limit_compute_threads(1);
    const TempFolder folder;  // the same text on every rank
    const Config config = small_config(write_text(folder.path()));
    const Outcome one = train(config, 1);
    int checked = 0;
    for (const Layout& layout : kLayouts) {
      if (layout.ranks != transport->world_size()) continue;
      try {
        check(*transport, with_layout(config, layout), one);
      } catch (const std::exception& e) {
        throw std::runtime_error(layout.name + ": " + e.what());
      }
      ++checked;
    }
    expect(checked > 0, fmt::format("no layout has {} ranks", transport->world_size()));
  } catch (const std::exception& e) {
    return moesaic::end_failed_job(transport, e);
  }
  return 0;
}
