#include "bench/trainer_steps.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "moesaic/comm/collectives.h"
#include "moesaic/comm/inproc.h"
#include "moesaic/train/checkpoint.h"
#include "moesaic/train/threads.h"
#include "moesaic/train/trainer.h"

namespace moesaic::bench {
namespace {

void answer(const nlohmann::json& object) { std::cout << object.dump() << std::endl; }

// Whether rank 0 was asked for one more step; the others sleep in the broadcast meanwhile.
bool one_more(Communicator& world) {
  std::byte more{0};
  if (world.rank() == 0) {
    std::string line;
    more = std::byte{std::getline(std::cin, line) ? std::uint8_t{1} : std::uint8_t{0}};
  }
  broadcast(world, std::span(&more, 1), 0);
  return more != std::byte{0};
}

}  // namespace

void serve_trainer_steps(const std::filesystem::path& config_file, const std::filesystem::path& checkpoints) {
  const Config config = load_config(config_file);
  const auto ranks = static_cast<int>(config.parallel.ranks);
  constexpr std::chrono::hours kTimeout{1};  // the others' turns are part of the wait
  run_inproc(ranks, [&](Transport& transport) {
    limit_compute_threads(static_cast<int>(config.parallel.threads_per_rank));
    Communicator world(transport, Topology::one_node(ranks), kTimeout);
    Trainer trainer(config, world);
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
    const std::filesystem::path checkpoint = save_checkpoint(trainer, checkpoints);
    if (world.rank() == 0) answer({{"checkpoint", checkpoint.string()}});
    while (one_more(world)) {
      const StepReport report = trainer.step();
      if (world.rank() == 0) answer({{"loss", report.loss}, {"gradient_norm", report.gradient_norm}});
    }
  });
}

}  // namespace moesaic::bench
