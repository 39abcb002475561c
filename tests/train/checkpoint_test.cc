#include "moesaic/train/checkpoint.h"

#include <gtest/gtest.h>

#include "moesaic/core/error.h"
#include "moesaic/interop/safetensors_set.h"
#include "moesaic/train/checkpoint_dir.h"
#include "tests/train/runs.h"

namespace moesaic::testing {
namespace {

namespace fs = std::filesystem;

// Parameters, moments and position of a trainer, whole.
struct State {
  Tensors parameters;
  std::vector<Tensors> moments;
  Trainer::Position position;
};

State state_after(const Config& config, const std::function<void(Trainer&)>& body) {
  TensorCollection parameters;
  std::vector<TensorCollection> moments(2);
  State state;
  std::size_t used = 0;
  on_ranks(config, [&](Trainer& trainer) {
    body(trainer);
    parameters.collect(trainer, [](ShardedUnit& unit) { return unit.master(); });
    for (std::size_t m = 0; m < trainer.optimizer().moment_names().size(); ++m) {
      std::size_t unit_index = 0;
      moments[m].collect(trainer, [&](ShardedUnit&) { return trainer.optimizer().moment(m, unit_index++); });
    }
    if (trainer.world().rank() == 0) {
      state.position = trainer.position();
      used = trainer.optimizer().moment_names().size();
    }
  });
  state.parameters = parameters.tensors();
  for (std::size_t m = 0; m < used; ++m) state.moments.push_back(moments[m].tensors());
  return state;
}

class Checkpoint : public ::testing::Test {
 protected:
  TempFolder folder_;
  Config config_ = small_config(write_text(folder_.path()));
  const fs::path checkpoints_ = folder_.path() / "checkpoints";

  fs::path save_after(const Config& config, std::int64_t steps) {
    fs::path saved;
    on_ranks(config, [&](Trainer& trainer) {
      trainer.model().initialise(1);
      for (std::int64_t i = 0; i < steps; ++i) trainer.step();
      const fs::path path = save_checkpoint(trainer, checkpoints_);
      if (trainer.world().rank() == 0) saved = path;
    });
    return saved;
  }
  State load(const Config& config, const fs::path& path) {
    return state_after(config, [&](Trainer& trainer) { load_checkpoint(trainer, path); });
  }
};

TEST_F(Checkpoint, SavedInOneLayoutLoadsInEveryOther) {
  config_.optim.name = OptimizerKind::kAdamW;
  config_.optim.lr = 1e-3;
  config_.model.moe.gate.capacity_factor = 0;
  config_.model.moe.gate.score = ScoreKind::kSigmoid;
  config_.model.moe.gate.bias_balance = true;
  const Config two = with_layout(config_, {"", 2, {"exchange"}});
  const fs::path saved = save_after(two, 3);
  const State reference = load(two, saved);
  EXPECT_EQ(reference.position.steps_done, 3);
  EXPECT_EQ(reference.position.next_sample, 24);
  ASSERT_EQ(reference.moments.size(), 2u);
  EXPECT_GT(largest(reference.moments[0].at("lm_head.weight")), 0.0f);
  for (const Layout& layout : {Layout{"", 1}, Layout{"", 2, {"gather"}}, Layout{"", 4, {"exchange"}, 2},
                               Layout{"", 4, {"gather"}, 2}, Layout{"", 3, {"gather", "exchange"}}}) {
    const State state = load(with_layout(config_, layout), saved);
    EXPECT_EQ(state.parameters, reference.parameters);
    EXPECT_EQ(state.moments, reference.moments);
  }
}

TEST_F(Checkpoint, ResumeIsBitEqualToARunThatWasNeverStopped) {
  for (const Layout& layout : {Layout{"", 1}, Layout{"", 4, {"exchange"}, 2}, Layout{"", 3, {"gather"}}}) {
    fs::remove_all(checkpoints_);
    const Config config = with_layout(config_, layout);
    const State straight = state_after(config, [&](Trainer& trainer) {
      trainer.model().initialise(1);
      for (int i = 0; i < 8; ++i) trainer.step();
    });
    const fs::path saved = save_after(config, 5);
    const State resumed = state_after(config, [&](Trainer& trainer) {
      load_checkpoint(trainer, saved);
      for (int i = 0; i < 3; ++i) trainer.step();
    });
    EXPECT_EQ(resumed.parameters, straight.parameters);
    EXPECT_EQ(resumed.moments, straight.moments);
  }
}

TEST_F(Checkpoint, FilesHoldEveryTensorOnceAndNothingMore) {
  const fs::path saved = save_after(with_layout(config_, {"", 4, {"exchange"}, 2}), 1);
  const SafetensorsSet set = SafetensorsSet::open(saved);
  std::int64_t elements = 0;
  for (const UnitSpec& unit : unit_specs(config_.model)) {
    for (const TensorSpec& tensor : unit.tensors) {
      EXPECT_EQ(set.info(tensor.name).shape, tensor.shape);
      elements += tensor.numel();
    }
  }
  EXPECT_EQ(set.names().size(), [&] {
    std::size_t count = 0;
    for (const UnitSpec& unit : unit_specs(config_.model)) count += unit.tensors.size();
    return count;
  }());
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(saved)) {
    if (entry.path().filename().string().starts_with("model-0"))
      bytes += static_cast<std::int64_t>(entry.file_size());
  }
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(elements) * 4, 4 * 4096.0);  // the headers
}

// What evaluation and generation read; a resumed run is compared key by key before (the test below).
TEST_F(Checkpoint, OneOfAnotherModelIsRefusedNamingTheTensor) {
  const fs::path saved = save_after(config_, 1);
  const auto load_model = [&](const Config& config) {
    state_after(config, [&](Trainer& trainer) { load_parameters(trainer.model(), trainer.gates(), saved); });
  };
  Config wider = config_;
  wider.model.moe.d_expert = 24;
  try {
    load_model(wider);
    FAIL() << "loaded";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("mlp.experts.0.gate_proj.weight"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("[16,32], expected fp32 [24,32]"), std::string::npos)
        << error.what();
  }
  Config fewer = config_;
  fewer.model.num_layers = 1;
  EXPECT_THROW(load_model(fewer), InvalidArgument);
  Config adam = config_;
  adam.optim.name = OptimizerKind::kAdamW;
  EXPECT_THROW(load(adam, saved), InvalidArgument);
}

TEST_F(Checkpoint, ResumingARunOfAnotherConfigurationNamesTheKey) {
  const fs::path saved = save_after(config_, 1);
  const auto refused = [&](const std::string& key, const std::function<void(Config&)>& change) {
    Config other = config_;
    change(other);
    try {
      load(other, saved);
      ADD_FAILURE() << key << ": loaded";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(key + " is "), std::string::npos) << error.what();
    }
  };
  refused("moe.d_expert", [](Config& c) { c.model.moe.d_expert = 24; });
  refused("moe.top_k", [](Config& c) { c.model.moe.gate.top_k = 1; });
  refused("model.num_heads", [](Config& c) { c.model.num_heads = 1; });
  refused("model.rope_theta", [](Config& c) { c.model.rope_theta = 7; });
  refused("train.seed", [](Config& c) { c.train.seed = 99; });
  refused("data.held_out_fraction", [](Config& c) { c.data.held_out_fraction = 0.2; });
  Config longer = config_;  // what a resumed run may change
  longer.train.steps = 50;
  longer.optim.lr = 0.1;
  EXPECT_EQ(load(longer, saved).position.steps_done, 1);
}

TEST_F(Checkpoint, AFlippedByteInAnyFileIsFoundOnAllRanksBeforeAnythingIsLoaded) {
  const Config two = with_layout(config_, {"", 2, {"exchange"}});
  const fs::path saved = save_after(two, 1);
  for (const char* name : {"model-00001-of-00002.safetensors", "optimizer-00000-of-00002.safetensors",
                           "optimizer.safetensors.index.json"}) {
    for (const std::int64_t at :
         {std::int64_t{12}, std::int64_t{60}}) {  // in the headers; the CRC covers all alike
      const auto flip = [&] {
        std::fstream stream(saved / name, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(at);
        const char byte = static_cast<char>(stream.get() ^ 1);
        stream.seekp(at);
        stream.put(byte);
      };
      flip();
      try {
        load(two, saved);
        ADD_FAILURE() << name << ": loaded";
      } catch (const CorruptData& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
      flip();
    }
  }
  EXPECT_EQ(load(two, saved).position.steps_done, 1);
}

TEST_F(Checkpoint, AFolderThatCannotBeWrittenFailsOnAllRanksAndLosesNothing) {
  const fs::path saved = save_after(config_, 1);
  Config two = with_layout(config_, {"", 2, {"exchange"}});
  fs::create_directories(folder_.path() / "blocked");
  std::ofstream(folder_.path() / "blocked" / "checkpoints") << "a file, not a folder";
  EXPECT_THROW(on_ranks(two,
                        [&](Trainer& trainer) {
                          load_checkpoint(trainer, saved);
                          save_checkpoint(trainer, folder_.path() / "blocked" / "checkpoints");
                        }),
               IoError);
  EXPECT_EQ(find_newest(checkpoints_), saved);
}

// Contract 4, threads: a rank that throws ends the others, and is named.
TEST_F(Checkpoint, ARankThatThrowsInTheMiddleOfTrainingEndsTheJobByName) {
  const Config four = with_layout(config_, {"", 4, {"exchange"}, 2});
  try {
    on_ranks(four, [&](Trainer& trainer) {
      trainer.model().initialise(1);
      trainer.step();
      if (trainer.world().rank() == 2) throw std::runtime_error("pulled the plug");
      for (int i = 0; i < 3; ++i) trainer.step();
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("pulled the plug"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moesaic::testing
