// Gathers and reduces that are chosen by gates, where only some groups of ranks cross between nodes.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/train/codec_runs.h"

namespace moesaic::testing {
namespace {

using codec::Method;

// Three steps, then those after the hundredth, by when every gate that has another way to try tries it.
Outcome probed(const Config& config, const std::vector<int>& node_of_rank) {
  TensorCollection parameters;
  Outcome outcome;
  std::vector<std::vector<StepReport>> by_rank(node_of_rank.size());
  on_nodes(config, node_of_rank, [&](Trainer& trainer) {
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
    std::vector<StepReport>& reports = by_rank[static_cast<std::size_t>(trainer.world().rank())];
    for (int i = 0; i < 3; ++i) reports.push_back(trainer.step());
    Trainer::Position later = trainer.position();
    later.steps_done += 100;
    trainer.restore(later);
    for (int i = 0; i < 3; ++i) reports.push_back(trainer.step());
    parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
    for (const StepReport& report : reports) {
      for (const UnitGathers& gathers : report.gathers) {
        const auto unit = std::ranges::find_if(trainer.model().units(), [&](const auto& candidate) {
          return candidate->layout().spec().name == gathers.unit;
        });
        // A gate is asked exactly where the unit's ranks are on more than one node.
        EXPECT_EQ(gathers.decision.has_value(),
                  !config.codec.method && (*unit)->gather_group().topology().num_nodes() > 1)
            << gathers.unit << " of rank " << trainer.world().rank();
      }
    }
  });
  outcome.steps = by_rank[0];
  outcome.parameters = parameters.tensors();
  return outcome;
}

// Owners of the same experts are ranks 0 and 2, and 1 and 3: on one node each, or one pair of them.
TEST(CodedTraining, GatesAreAskedOnlyOfUnitsWhoseRanksAreOnSeveralNodes) {
  for (const std::vector<int>& node_of_rank : {std::vector<int>{0, 1, 0, 1}, std::vector<int>{0, 0, 0, 1}}) {
    SCOPED_TRACE(fmt::format("nodes {}", fmt::join(node_of_rank, " ")));
    const TempFolder folder;
    Config config = bf16_run(folder);
    config.parallel.experts = {"exchange"};
    config.parallel.exchange_size = 2;
    config.train.steps = 200;
    const Outcome raw = probed(config, node_of_rank);
    config.codec.method = std::nullopt;
    config.codec.gradients = std::nullopt;
    config.codec.calibration = calibration_file(folder, node_of_rank, 1e-6, 1e-6);
    expect_same_bits(raw, probed(config, node_of_rank));
  }
}

// Owners are ranks 0 and 2, and 1 and 3; each pair is on two nodes. Rank 0 writes the log.
TEST(CodedTraining, AResyncBetweenOtherRanksIsInEveryReport) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.parallel.experts = {"exchange"};
  config.parallel.exchange_size = 2;
  config.codec.method = Method::kMomentum;
  on_nodes(config, {0, 1, 1, 0}, [&](Trainer& trainer) {
    trainer.model().initialise(1);
    trainer.step();
    for (auto& unit : trainer.model().units()) {
      if (trainer.world().rank() != 3 || unit->layout().spec().kind != UnitKind::kExpert) continue;
      unit->coded()->reference(0)->memory()[5] ^= std::byte{0x10};  // of rank 1
    }
    for (const UnitGathers& gathers : trainer.step().gathers) {
      const auto unit = std::ranges::find_if(trainer.model().units(), [&](const auto& candidate) {
        return candidate->layout().spec().name == gathers.unit;
      });
      const bool experts = (*unit)->layout().spec().kind == UnitKind::kExpert;
      EXPECT_EQ(gathers.counts.resyncs, experts ? 1 : 0) << gathers.unit;
      EXPECT_EQ(gathers.resync_reason.starts_with("the part of rank 1: "), experts) << gathers.resync_reason;
    }
  });
}

}  // namespace
}  // namespace moesaic::testing
