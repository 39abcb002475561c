// Training with coded gathers: the same bits as with raw ones, whatever is chosen.
#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "tests/comm/thrown.h"
#include "tests/train/codec_runs.h"

namespace moesaic::testing {
namespace {

using codec::Method;

TEST(CodedTraining, TwoHundredStepsAreThoseOfRawWithEveryLosslessMethodAndBothReferences) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.train.steps = 200;
  config.model.num_layers = 1;
  config.train.batch_tokens = 64;
  const Outcome raw = train(config, 200);
  for (const Method method : codec::kMethods) {
    if (!codec::lossless(method) || method == Method::kRaw) continue;
    for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
      SCOPED_TRACE(codec::name_of(method));
      config.codec.method = method;
      config.codec.reference = mode;
      const Outcome coded = train(config, 200);
      expect_same_bits(raw, coded);
      EXPECT_LT(coded.steps.back().gather.inter_node, raw.steps.back().gather.inter_node);
    }
  }
}

// Whatever gates may decide: each unit's weights by any lossless method, its gradients by any lossless wire,
// another one every step.
TEST(CodedTraining, TwoHundredStepsOfRandomChoicesAreThoseOfRaw) {
  constexpr Method kChoices[] = {Method::kRaw, Method::kEntropy, Method::kExponentReuse, Method::kResidual,
                                 Method::kMomentum};
  constexpr std::uint64_t kSteps = 200;
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.train.steps = kSteps;
  config.model.num_layers = 1;
  config.train.batch_tokens = 64;
  const Outcome raw = train(config, kSteps);
  for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    TensorCollection parameters;
    std::set<Method> taken;
    std::set<codec::GradientWire> wires;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.model().initialise(static_cast<std::uint64_t>(config.train.seed));
      for (std::uint64_t step = 0; step < kSteps; ++step) {
        auto& units = trainer.model().units();
        for (std::uint64_t u = 0; u < units.size(); ++u) {
          units[u]->set_codec(kChoices[random_bits(11, step * 100 + u) % std::size(kChoices)], mode);
          units[u]->set_gradient_wire(random_bits(12, step * 100 + u) % 2 == 0
                                          ? codec::GradientWire::kBf16
                                          : codec::GradientWire::kEntropy);
        }
        const StepReport report = trainer.step();
        EXPECT_EQ(report.loss, raw.steps[step].loss) << "step " << step + 1;
        EXPECT_EQ(report.gradient_norm, raw.steps[step].gradient_norm) << "step " << step + 1;
        if (trainer.world().rank() != 0) continue;
        for (const UnitGathers& gathers : report.gathers) taken.insert(gathers.method);
        for (const UnitReduces& reduces : report.reduces) wires.insert(reduces.wire);
      }
      parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
    });
    EXPECT_EQ(parameters.tensors(), raw.parameters);
    EXPECT_EQ(taken, std::set<Method>(std::begin(kChoices), std::end(kChoices)));
    EXPECT_EQ(wires.size(), 2u);
  }
}

TEST(CodedTraining, AutoCalibratesChoosesAndChangesNoBit) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.train.steps = StepTrial::kFirst;
  const Outcome raw = train(config, StepTrial::kFirst);
  config.codec.method = std::nullopt;
  const Outcome chosen = train(config, StepTrial::kFirst);
  expect_same_bits(raw, chosen);
  ASSERT_FALSE(chosen.steps.back().gathers.empty());
  for (const UnitGathers& gathers : chosen.steps.back().gathers) {
    ASSERT_TRUE(gathers.decision) << gathers.unit;
    EXPECT_GT(gathers.decision->predicted_raw_s, 0) << gathers.unit;
    EXPECT_GT(gathers.decision->predicted_coded_s, 0) << gathers.unit;
    EXPECT_GT(gathers.decision->window_s, 0) << gathers.unit;
    EXPECT_EQ(gathers.decision->chosen, gathers.method) << gathers.unit;
    EXPECT_EQ(gathers.decision->measured_s, gathers.counts.seconds) << gathers.unit;
  }
}

// The link is said to be slow, so everything is coded at first; it is memory, so what a trial finds is open.
TEST(CodedTraining, ATrialOfPlainStepsEndsWithAWayThatIsKeptAndChangesNoBit) {
  constexpr int kSteps = StepTrial::kFirst + StepTrial::kPlainWarmUp + StepTrial::kMeasured + 4;
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.train.steps = kSteps;
  const Outcome raw = train(config, kSteps);
  config.codec.method = std::nullopt;
  config.codec.gradients = std::nullopt;
  config.codec.calibration = calibration_file(folder, {0, 0, 1, 1}, 1e-4);
  const Outcome tried = train(config, kSteps);
  expect_same_bits(raw, tried);
  std::optional<bool> plain;  // once a trial has ended
  for (const StepReport& step : tried.steps) {
    SCOPED_TRACE(step.step);
    const bool trying = step.step > StepTrial::kFirst && !plain;
    for (const UnitGathers& gathers : step.gathers) {
      EXPECT_EQ(gathers.method, trying || plain.value_or(false) ? Method::kRaw : Method::kMomentum);
      EXPECT_EQ(gathers.decision.has_value(), gathers.method != Method::kRaw);
    }
    for (const UnitReduces& reduces : step.reduces) {
      EXPECT_EQ(reduces.wire,
                trying || plain.value_or(false) ? codec::GradientWire::kBf16 : codec::GradientWire::kEntropy);
    }
    if (!step.trial) continue;
    EXPECT_FALSE(plain) << "a second trial so soon";
    EXPECT_GT(step.trial->coded_s, 0);
    EXPECT_GT(step.trial->plain_s, 0);
    plain = step.trial->plain;
  }
  EXPECT_TRUE(plain) << "no trial";
}

TEST(CodedTraining, ACalibrationThatCannotBeReadOrIsOfOtherRanksEndsTheRunOnAllRanks) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.codec.method = std::nullopt;
  config.codec.calibration = (folder.path() / "absent.json").string();
  EXPECT_SAYS(thrown_by([&] { train(config, 1); }), "absent.json");

  config.codec.calibration = calibration_file(folder, {0, 1}, 0);
  EXPECT_SAYS(thrown_by([&] { train(config, 1); }),
              "was measured with 2 ranks on nodes 0 1, this job has 4 on 0 0 1 1");
}

TEST(CodedTraining, AutoOnOneNodeLeavesGathersRawWithoutMeasuring) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.comm.ranks_per_node = 0;
  config.codec.method = std::nullopt;
  const Outcome outcome = train(config, 2);
  for (const UnitGathers& gathers : outcome.steps.back().gathers) {
    EXPECT_EQ(gathers.method, Method::kRaw);
    EXPECT_FALSE(gathers.decision);
  }
}

TEST(CodedTraining, OnOneNodeALosslessMethodIsSentOnlyWhereEveryRankDecodes) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.comm.ranks_per_node = 0;
  config.codec.method = Method::kMomentum;
  for (const ReferenceMode mode : {ReferenceMode::kRank, ReferenceMode::kNode}) {
    config.codec.reference = mode;
    const Outcome outcome = train(config, 2);
    for (const UnitGathers& gathers : outcome.steps.back().gathers) {
      EXPECT_EQ(gathers.method, mode == ReferenceMode::kRank ? Method::kMomentum : Method::kRaw);
    }
  }
}

TEST(CodedTraining, TheReportCountsWhatEachUnitSent) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  config.codec.method = Method::kMomentum;
  const Outcome outcome = train(config, 3);
  std::int64_t coded = 0, raw = 0;
  for (const UnitGathers& gathers : outcome.steps.back().gathers) {
    SCOPED_TRACE(gathers.unit);
    // The forward pass sends the difference, the backward pass nothing (the head is gathered once).
    EXPECT_EQ(gathers.counts.runs - gathers.counts.unsent, 1);
    EXPECT_EQ(gathers.counts.words, gathers.words);
    EXPECT_EQ(gathers.counts.keys, 0);
    coded += gathers.counts.coded_bytes;
    raw += gathers.raw_bytes;
  }
  EXPECT_EQ(outcome.steps.front().gathers.front().counts.keys, config.parallel.ranks);
  EXPECT_GT(coded, 0);
  EXPECT_GT(raw, outcome.steps.back().gather.inter_node);
}

TEST(CodedTraining, GradientsWithCodedExponentsAddUpToTheSameBits) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  const Outcome plain = train(config, 8);
  config.codec.gradients = codec::GradientWire::kEntropy;
  const Outcome coded = train(config, 8);
  expect_same_bits(plain, coded);
  EXPECT_LT(coded.steps.back().reduce.inter_node, plain.steps.back().reduce.inter_node);
}

TEST(CodedTraining, AutoChoosesHowEachUnitsGradientsTravelAndSaysWhatItWeighed) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  const Outcome plain = train(config, 8);
  config.codec.gradients = std::nullopt;
  const Outcome chosen = train(config, 8);
  expect_same_bits(plain, chosen);
  ASSERT_EQ(chosen.steps.back().reduces.size(), plain.steps.back().reduces.size());
  for (std::size_t u = 0; u < chosen.steps.back().reduces.size(); ++u) {
    const UnitReduces& reduces = chosen.steps.back().reduces[u];
    SCOPED_TRACE(reduces.unit);
    ASSERT_TRUE(reduces.decision);
    EXPECT_GT(reduces.decision->predicted_bf16_s, 0);
    EXPECT_GT(reduces.decision->predicted_entropy_s, 0);
    EXPECT_EQ(reduces.decision->chosen, reduces.wire);
    EXPECT_EQ(reduces.decision->measured_s, reduces.counts.seconds);
    EXPECT_EQ(reduces.counts.runs, 1);
    // Fixed wires are counted, too, and have nothing to decide.
    EXPECT_EQ(reduces.counts.words, plain.steps.back().reduces[u].counts.words);
    EXPECT_FALSE(plain.steps.back().reduces[u].decision);
  }
}

TEST(CodedTraining, Int8GradientsLearnAndAreAnotherRun) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  const Outcome plain = train(config, 20);
  config.codec.gradients = codec::GradientWire::kInt8;
  const Outcome lossy = train(config, 20);
  EXPECT_NE(lossy.parameters, plain.parameters);
  EXPECT_LT(lossy.steps.back().loss, plain.steps.back().loss + 0.3);
  EXPECT_LT(lossy.steps.back().loss, lossy.steps.front().loss - 0.5);
}

TEST(CodedTraining, OnlyInt8IsCalledLossyInTheLogAndInANote) {
  const TempFolder folder;
  Config config = bf16_run(folder);
  const auto log_of = [&](const std::string& file) {
    return logged(train(config, 1).steps.front(), folder.path() / file);
  };
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  };
  config.codec.method = Method::kMomentum;
  config.codec.gradients = codec::GradientWire::kEntropy;
  EXPECT_EQ(count(log_of("lossless"), "lossy"), 0u);
  EXPECT_TRUE(notes(config).empty());
  config.codec.method = std::nullopt;
  config.codec.gradients = std::nullopt;
  EXPECT_TRUE(notes(config).empty());

  config.codec.method = Method::kInt8;
  config.codec.gradients = codec::GradientWire::kInt8;
  const std::string lossy = log_of("lossy");
  EXPECT_GT(count(lossy, "\"int8\",\"lossy\":true"), 0u);
  EXPECT_EQ(count(lossy, "\"int8\""), count(lossy, "\"lossy\":true"));
  ASSERT_EQ(notes(config).size(), 1u);
  EXPECT_SAYS(notes(config)[0],
              "weights as int8 (codec.method) and gradients as int8 (codec.gradients) travel lossy");
  config.codec.method = Method::kRaw;
  ASSERT_EQ(notes(config).size(), 1u);
  EXPECT_TRUE(notes(config)[0].starts_with("gradients as int8"));
  config.train.dtype = DType::kF32;  // travels as it is
  EXPECT_TRUE(notes(config).empty());
}

}  // namespace
}  // namespace moesaic::testing
