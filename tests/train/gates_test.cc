// Training with every gate: it learns, stops and goes on bit-equal, and computes layers again bit-equal.
#include <filesystem>

#include "moesaic/core/error.h"
#include "moesaic/routing/gate_form.h"
#include "moesaic/train/checkpoint.h"
#include "tests/routing/gates.h"
#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

Config config_for(const std::string& name, const fs::path& folder) {
  Config config = small_config(write_text(folder));
  const Gate& gate = gate_named(name);
  GateOptions& options = config.model.moe.gate;
  options.name = name;
  options.num_experts = 8;
  options.top_k = gate.top_k == 0 ? 2 : gate.top_k;
  options.normalise = Normalise::kPaper;
  options.capacity_factor = gate.capacity == Gate::Capacity::kNone ? 0.0 : 1.25;
  if (name == "sam") options.num_groups = 2;
  options.random_second = name == "gshard";
  if (name == "dense_to_sparse") {
    options.cooling_steps = 40;
    options.sparse_after = 60;
  }
  if (name == "top_k") {  // DeepSeek-V3's
    options.score = ScoreKind::kSigmoid;
    options.normalise = Normalise::kBeforeDrop;
    options.bias_balance = true;
    options.num_groups = 4;
    options.kept_groups = 2;
  }
  config.model.moe.jitter = name == "switch" ? 0.01 : 0.0;
  config.optim.name = OptimizerKind::kAdamW;
  config.optim.lr = 1e-2;
  return config;
}

class TrainWith : public ::testing::TestWithParam<std::string> {
 protected:
  TempFolder folder_;
  Config config_ = config_for(GetParam(), folder_.path());
};

INSTANTIATE_TEST_SUITE_P(Gates, TrainWith, ::testing::ValuesIn(gate_names()),
                         [](const auto& info) { return info.param; });

TEST_P(TrainWith, HeldOutLossFallsBelowOnePointThree) {
  config_.train.steps = 80;
  on_ranks(with_layout(config_, {"", 2, {"exchange"}}), [&](Trainer& trainer) {
    trainer.model().initialise(1);
    const double before = trainer.evaluate(1024).back().loss;
    std::vector<std::int64_t> chosen(8, 0);
    for (int i = 0; i < 80; ++i) {
      const StepReport report = trainer.step();
      ASSERT_EQ(report.chosen.size(), 2u);  // the heat map of the report has a row for each layer
      for (std::size_t e = 0; e < 8; ++e) chosen[e] += report.chosen[1][e];
    }
    const double after = trainer.evaluate(1024).back().loss;
    EXPECT_GT(before, 5.0);  // ln 256 = 5.5
    EXPECT_LT(after, 1.3);
    for (std::size_t e = 0; e < 8; ++e) EXPECT_GT(chosen[e], 0) << "expert " << e << " saw no token";
  });
}

Outcome state_after(const Config& config, const std::function<void(Trainer&)>& body, GateStates* gates) {
  TensorCollection parameters;
  on_ranks(config, [&](Trainer& trainer) {
    body(trainer);
    parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
    if (trainer.world().rank() == 0) *gates = trainer.gates();
  });
  Outcome outcome;
  outcome.parameters = parameters.tensors();
  return outcome;
}

TEST_P(TrainWith, ResumeIsBitEqualAndBringsTheGatesStateBack) {
  const Config config = with_layout(config_, {"", 3, {"gather", "exchange"}});
  const fs::path checkpoints = folder_.path() / "checkpoints";
  fs::path saved;
  GateStates straight_gates, resumed_gates, read_gates;
  const Outcome straight = state_after(
      config,
      [&](Trainer& trainer) {
        trainer.model().initialise(1);
        for (int i = 0; i < 3; ++i) trainer.step();
        const fs::path path = save_checkpoint(trainer, checkpoints);
        if (trainer.world().rank() == 0) saved = path;
        for (int i = 0; i < 3; ++i) trainer.step();
      },
      &straight_gates);
  const Outcome resumed = state_after(
      config,
      [&](Trainer& trainer) {
        load_checkpoint(trainer, saved);
        for (int i = 0; i < 3; ++i) trainer.step();
      },
      &resumed_gates);
  EXPECT_EQ(resumed.parameters, straight.parameters);
  EXPECT_EQ(resumed_gates.layers, straight_gates.layers);
  EXPECT_EQ(resumed_gates.step, 6);
  // What evaluation and generation read.
  on_ranks(with_layout(config, {"", 1}), [&](Trainer& trainer) {
    read_gates = empty_gate_states(config.model);
    load_parameters(trainer.model(), read_gates, saved);
  });
  EXPECT_EQ(read_gates.step, 3);
  EXPECT_TRUE(GetParam() != "hash" || read_gates.layers == straight_gates.layers);
}

TEST_P(TrainWith, RecomputedLayersGiveTheSameBits) {
  Config again = config_ = with_layout(config_, {"", 2, {"exchange"}});
  again.train.recompute = {"full"};
  const Outcome kept = train(config_, 3), recomputed = train(again, 3);
  EXPECT_EQ(recomputed.gradients, kept.gradients);
  EXPECT_EQ(recomputed.parameters, kept.parameters);
}

TEST(PerLayer, ABiasIsBalancedInTheLayersThatSaySoAndInNoOther) {
  const TempFolder folder;
  Config config = small_config(write_text(folder.path()));
  config.model.num_layers = 3;
  config.model.moe.gate.capacity_factor = 0;
  config.model.moe.gate.score = ScoreKind::kSigmoid;
  config.model.moe.gate.bias_balance = true;
  config.moe_per_layer = {"1.bias_balance=false"};
  read_layers(config);
  on_ranks(config, [](Trainer& trainer) {
    trainer.model().initialise(1);
    trainer.step();
    const auto moved = [&](std::size_t layer) {
      return std::ranges::any_of(trainer.gates().layers[layer], [](float bias) { return bias != 0; });
    };
    EXPECT_TRUE(moved(0));
    EXPECT_FALSE(moved(1));
    EXPECT_TRUE(moved(2));
  });
}

class TrainWithAnyLayout : public TrainWith {};
INSTANTIATE_TEST_SUITE_P(Gates, TrainWithAnyLayout, ::testing::ValuesIn(gates_where(any_layout)),
                         [](const auto& info) { return info.param; });

TEST_P(TrainWithAnyLayout, GradientsAndLossesDoNotDependOnIt) {
  config_.optim.name = OptimizerKind::kSgd;
  config_.optim.lr = 0.1;
  const Outcome one = train(config_, 3);
  for (const Layout& layout : {Layout{"", 2, {"exchange"}}, Layout{"", 4, {"gather", "exchange"}, 2}}) {
    const Outcome other = train(with_layout(config_, layout), 3);
    expect_close(one.gradients, other.gradients, 2e-5f);
    for (std::size_t i = 0; i < one.steps.size(); ++i) {
      EXPECT_NEAR(other.steps[i].loss, one.steps[i].loss, 1e-4 * one.steps[i].loss);
      EXPECT_EQ(other.steps[i].dropped, one.steps[i].dropped);
      EXPECT_EQ(other.steps[i].dropped_random, one.steps[i].dropped_random);
      EXPECT_EQ(one.steps[i].dropped_random > 0, GetParam() == "gshard");
    }
  }
}

TEST(PerLayer, KeysOfSingleLayersAreReadWrittenAndRefused) {
  const TempFolder folder;
  const fs::path text = write_text(folder.path());
  const auto parse = [&](const std::string& more) {
    return parse_config("[model]\nnum_layers = 3\n[moe]\ntop_k = 2\n" + more, "test", folder.path());
  };
  const Config config = parse(
      "per_layer = ['0.gate=hash', '0.top_k=1', '2.gate=sam', '2.num_groups=4', '2.capacity_factor=1.5']");
  EXPECT_EQ(moe_of(config.model, 0).gate.name, "hash");
  EXPECT_EQ(moe_of(config.model, 0).gate.top_k, 1);
  EXPECT_EQ(moe_of(config.model, 1).gate.name, "top_k");
  EXPECT_EQ(moe_of(config.model, 2).gate.num_groups, 4);
  EXPECT_EQ(moe_of(config.model, 2).gate.top_k, 2);
  EXPECT_EQ(moe_of(config.model, 2).gate.capacity_factor, 1.5);
  const Config again = parse_config(to_toml(config), "again", folder.path());
  EXPECT_EQ(to_toml(again), to_toml(config));
  EXPECT_EQ(again.model.own_moe.size(), 2u);
  const auto refused = [&](const std::string& entry, const std::string& says) {
    try {
      parse("per_layer = ['" + entry + "']");
      ADD_FAILURE() << entry << ": accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused("gate=hash", "expected LAYER.key=value");
  refused("7.gate=gshard", "layer 7");
  refused("1.gate=hush", "\"hash\"");
  refused("1.gaet=hash", "gate");
  refused("1.num_experts=4", "layer 1");
  refused("1.gate=switch", "top_k is 2");
}

TEST(PerLayer, ALayerWithAnotherGateDoesNotInheritWhatItWouldIgnoreButMayNotSetItItself) {
  const TempFolder folder;
  const fs::path text = write_text(folder.path());
  const auto parse = [&](const std::string& per_layer) {
    return parse_config(
        "[model]\nnum_layers = 3\n[moe]\ngate = 'top_k'\nscore = 'sigmoid'\nnum_groups = 4\nkept_groups = 2\n"
        "bias_balance = true\nmin_capacity = 5\nper_layer = [" +
            per_layer + "]",
        "test", folder.path());
  };
  const Config config =
      parse("'0.gate=hash', '0.top_k=1', '2.num_groups=2', '2.gate=sam', '1.kept_groups=3'");
  const GateOptions &hash = moe_of(config.model, 0).gate, &top_k = moe_of(config.model, 1).gate,
                    &sam = moe_of(config.model, 2).gate;
  EXPECT_EQ(hash.score, ScoreKind::kSoftmax);
  EXPECT_EQ(hash.num_groups, 1);
  EXPECT_FALSE(hash.bias_balance);
  EXPECT_EQ(hash.min_capacity, 5);  // every gate's
  EXPECT_EQ(sam.num_groups, 2);
  EXPECT_EQ(sam.kept_groups, 1);
  EXPECT_EQ(top_k.score, ScoreKind::kSigmoid);
  EXPECT_EQ(top_k.num_groups, 4);
  EXPECT_EQ(top_k.kept_groups, 3);
  EXPECT_EQ(to_toml(parse_config(to_toml(config), "again", folder.path())), to_toml(config));
  try {
    parse("'0.gate=hash', '0.top_k=1', '0.num_groups=2'");
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("num_groups is 2 with the hash gate"), std::string::npos)
        << error.what();
  }
}

TEST(PerLayer, NotesNameTheLayersWhoseGatesLookAcrossTheBatch) {
  const TempFolder folder;
  const auto notes_of = [&](const std::string& more) {
    return notes(parse_config("[model]\nnum_layers = 3\n[moe]\n" + more, "test", folder.path()));
  };
  EXPECT_TRUE(notes_of("").empty());
  const auto expert_choice = notes_of(
      "per_layer = ['0.gate=expert_choice', '0.capacity_factor=1', "
      "'2.gate=expert_choice', '2.capacity_factor=1']");
  ASSERT_EQ(expert_choice.size(), 1u);
  EXPECT_EQ(expert_choice[0].find("layers 0, 2: gate expert_choice lets experts look across the batch"), 0u);
  const auto by_score = notes_of("capacity_factor = 1\npriority = 'score'");
  ASSERT_EQ(by_score.size(), 1u);
  EXPECT_EQ(by_score[0].find("layers 0, 1, 2: priority \"score\" looks across the batch"), 0u);
  EXPECT_EQ(notes_of("gate = 'base'\ntop_k = 1").size(), 1u);
}

}  // namespace
}  // namespace moesaic::testing
