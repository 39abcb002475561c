// Coded training in which something goes wrong: the bits of an undisturbed run, or an end that says why.
#include <gtest/gtest.h>

#include <atomic>

#include "moesaic/train/checkpoint.h"
#include "tests/comm/thrown.h"
#include "tests/train/codec_runs.h"

namespace moesaic::testing {
namespace {

using codec::GradientWire;
using codec::Method;

TEST(CodedFaults, ARunResumedFromACheckpointAloneGoesOnWithKeysAndTheSameBits) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.optim.name = OptimizerKind::kAdamW;
  config.optim.lr = 1e-2;
  config.codec.method = Method::kMomentum;
  config.codec.gradients = GradientWire::kEntropy;
  for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    config.codec.reference = mode;
    const Outcome whole = train(config, 8);
    const auto checkpoints = folder.path() / (mode == ReferenceMode::kRank ? "rank" : "node");
    std::filesystem::path saved;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
      for (int step = 0; step < 4; ++step) trainer.step();
      const auto path = save_checkpoint(trainer, checkpoints);
      if (trainer.world().rank() == 0) saved = path;
    });
    TensorCollection parameters;
    on_ranks(config, [&](Trainer& trainer) {
      load_checkpoint(trainer, saved);
      for (std::size_t step = 4; step < 8; ++step) {
        const StepReport report = trainer.step();
        EXPECT_EQ(report.loss, whole.steps[step].loss) << "step " << step + 1;
        EXPECT_EQ(report.gradient_norm, whole.steps[step].gradient_norm) << "step " << step + 1;
        for (const UnitGathers& gathers : report.gathers) {
          EXPECT_EQ(gathers.method, Method::kMomentum) << gathers.unit;
          // Nobody holds anything at first, and all know: no rank takes another for out of step.
          EXPECT_EQ(gathers.counts.keys, step == 4 ? config.parallel.ranks : 0) << gathers.unit;
          EXPECT_EQ(gathers.counts.resyncs, 0) << gathers.unit;
        }
      }
      parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
    });
    EXPECT_EQ(parameters.tensors(), whole.parameters);
  }
}

TEST(CodedFaults, AStoredReferenceThatIsDamagedCostsAKeyAndNoBitAndTheLogSaysWhy) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  const Outcome raw = train(config, 6);
  config.codec.method = Method::kMomentum;
  TensorCollection parameters;
  std::int64_t resyncs = 0;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
    for (int step = 0; step < 6; ++step) {
      if (step == 3 && trainer.world().rank() == 2) {
        for (auto& unit : trainer.model().units()) {
          codec::Reference* held = unit->coded() == nullptr ? nullptr : unit->coded()->reference(0);
          if (held != nullptr && held->size() > 0) held->memory()[5] ^= std::byte{0x10};
        }
      }
      const StepReport report = trainer.step();
      for (const UnitGathers& gathers : report.gathers) {
        EXPECT_EQ(gathers.resync_reason.empty(), gathers.counts.resyncs == 0);
      }
      if (trainer.world().rank() != 0) continue;
      for (const UnitGathers& gathers : report.gathers) {
        resyncs += gathers.counts.resyncs;
        if (gathers.counts.resyncs > 0) {
          EXPECT_SAYS(gathers.resync_reason, "the part of rank 0: codec message");
        }
      }
      const std::string line = logged(report, folder.path() / fmt::format("{}.jsonl", step));
      const bool said =
          line.find("\"resync_reason\":\"the part of rank 0: codec message") != std::string::npos;
      EXPECT_EQ(said, step == 3) << line;
      EXPECT_EQ(line.find("resync_reason") != std::string::npos, step == 3) << line;
    }
    parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
  });
  EXPECT_EQ(parameters.tensors(), raw.parameters);
  EXPECT_GT(resyncs, 0);
}

// Two steps by momentum and entropy; between them rank 3 alone does something else. What the first error
// says; every rank must have one.
std::string end_of_a_run_in_which_rank_3(const std::function<void(ShardedUnit&)>& chooses_otherwise,
                                         std::chrono::milliseconds timeout = kTestTimeout) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.codec.method = Method::kMomentum;
  config.codec.gradients = GradientWire::kEntropy;
  std::atomic<int> failed = 0;
  std::string end = thrown_by([&] {
    on_nodes(
        config, {0, 0, 1, 1},
        [&](Trainer& trainer) {
          try {
            trainer.model().initialise(1);
            trainer.step();
            if (trainer.world().rank() == 3) {
              for (auto& unit : trainer.model().units()) chooses_otherwise(*unit);
            }
            trainer.step();
          } catch (const Error&) {
            ++failed;
            throw;
          }
        },
        timeout);
  });
  EXPECT_EQ(failed, 4);
  return end;
}

TEST(CodedFaults, ARankThatCodesByAnotherMethodEndsTheRunWhichSaysWho) {
  const std::string end = end_of_a_run_in_which_rank_3(
      [](ShardedUnit& unit) { unit.set_codec(Method::kResidual, ReferenceMode::kNode); });
  EXPECT_SAYS(end, "CorruptData: rank ");
  EXPECT_SAYS(end,
              "ranks disagree: rank 0 gathers unit 0 by momentum, rank 3 unit 0 by residual; all must do the "
              "same");
}

TEST(CodedFaults, ARankThatGathersRawAmongCodedOnesEndsTheRunAtTheSizeOfAMessage) {
  const std::string end = end_of_a_run_in_which_rank_3(
      [](ShardedUnit& unit) { unit.set_codec(Method::kRaw, ReferenceMode::kNode); });
  EXPECT_SAYS(end, "CorruptData: rank ");
  EXPECT_SAYS(end, "bytes, but rank ");
}

TEST(CodedFaults, ARankThatSendsExpertsGradientsByAnotherWireEndsTheRunWhichSaysWho) {
  const std::string end = end_of_a_run_in_which_rank_3([](ShardedUnit& unit) {
    if (unit.layout().spec().kind == UnitKind::kExpert) unit.set_gradient_wire(GradientWire::kBf16);
  });
  EXPECT_SAYS(end, "CorruptData: rank ");
  EXPECT_SAYS(end, "ranks disagree: rank ");
  // Rank 3 and its counterpart on the other node both see it; either may be the first.
  const std::string by_1 = "rank 3 sends the gradients of layers.1.gate_up by bf16, rank 1 expects entropy";
  const std::string by_3 = "rank 1 sends the gradients of layers.1.gate_up by entropy, rank 3 expects bf16";
  EXPECT_TRUE(end.find(by_1) != std::string::npos || end.find(by_3) != std::string::npos) << end;
}

// Dense gradients in bf16 go without messages of the codec: nothing says what they are, and ranks wait for
// what others never send.
TEST(CodedFaults, ARankThatSendsDenseGradientsPlainlyAmongCodedOnesEndsTheRunAtTheTimeout) {
  const std::string end = end_of_a_run_in_which_rank_3(
      [](ShardedUnit& unit) {
        if (unit.layout().spec().kind == UnitKind::kDense) unit.set_gradient_wire(GradientWire::kBf16);
      },
      std::chrono::milliseconds(3000));
  EXPECT_SAYS(end, "PeerLost(");
  EXPECT_SAYS(end, "made no progress");
  EXPECT_SAYS(end, "for 3000 ms");
}

}  // namespace
}  // namespace moesaic::testing
