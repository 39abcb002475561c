#include "moesaic/train/config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "moesaic/core/error.h"
#include "moesaic/core/file.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = MOESAIC_SOURCE_DIR;

Config parse(std::string_view text, std::vector<std::string> overrides = {}) {
  return parse_config(text, "run.toml", "/data/runs", overrides);
}

std::string error_of(std::string_view text, std::vector<std::string> overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, TheDefaultsAreValidAndRoundTrip) {
  const Config config = parse("");
  EXPECT_EQ(to_toml(config), to_toml(Config()));
  EXPECT_EQ(to_toml(parse(to_toml(config))), to_toml(config));
}

TEST(Config, EveryPresetLoadsAndRoundTrips) {
  int presets = 0;
  for (const auto& entry : fs::directory_iterator(kSource / "configs")) {
    const std::string text = to_toml(load_config(entry.path()));
    EXPECT_EQ(to_toml(parse(text)), text) << entry.path();
    ++presets;
  }
  EXPECT_EQ(presets, 6);
}

TEST(Config, OlmoeHasItsPublishedShape) {
  const Config config = load_config(kSource / "configs/olmoe-1b-7b.toml");
  const ModelConfig& m = config.model;
  EXPECT_EQ(m.num_layers, 16);
  EXPECT_EQ(m.d_model, 2048);
  EXPECT_EQ(m.num_heads, 16);
  EXPECT_EQ(m.vocab_size, 50304);
  EXPECT_EQ(m.max_seq_len, 4096);
  EXPECT_EQ(m.moe.gate.num_experts, 64);
  EXPECT_EQ(m.moe.gate.top_k, 8);
  EXPECT_EQ(m.moe.d_expert, 1024);
  EXPECT_EQ(m.moe.gate.normalise, Normalise::kNone);
  EXPECT_EQ(m.moe.gate.score, ScoreKind::kSoftmax);
  EXPECT_EQ(config.train.dtype, DType::kBF16);
}

TEST(Config, TheReferencePageIsCurrent) {
  EXPECT_EQ(read_text(kSource / "docs/configuration.md"), reference_markdown())
      << "docs/configuration.md is out of date; regenerate it: "
         "build/release/moesaic config --reference > docs/configuration.md";
}

TEST(Config, RelativeFilesStartAtTheConfigurationFileAndOverridesAtTheCurrentDirectory) {
  const std::string toml = "[data]\nfiles = [\"../a.txt\", \"/b.txt\"]\n";
  EXPECT_EQ(parse(toml).data.files, (std::vector<std::string>{"/data/a.txt", "/b.txt"}));
  EXPECT_EQ(parse(toml, {"data.files=[\"c.txt\"]"}).data.files,
            std::vector<std::string>{(fs::current_path() / "c.txt").string()});
}

TEST(Config, KeysReachTheirVariables) {
  const Config config = parse(
      "[moe]\nnum_experts = 4\ntop_k = 1\ngate = \"switch\"\nbalance_scope = \"sequence\"\nnon_finite = "
      "\"drop\"\n"
      "[parallel]\nexperts = [\"gather\", \"exchange\"]\n[model]\nnum_layers = 2\nactivation = \"relu\"\n"
      "[optim]\nname = \"sgd\"\nschedule = \"constant\"\n[data]\nformat = \"uint16\"\n",
      {"moe.d_expert=64", "train.dtype=bf16", "comm.wire=\"fp32\""});
  EXPECT_EQ(config.model.moe.gate.name, "switch");
  EXPECT_EQ(config.model.moe.balance_scope, BalanceScope::kSequence);
  EXPECT_EQ(config.model.moe.gate.non_finite, OnNonFinite::kDrop);
  EXPECT_EQ(config.model.moe.d_expert, 64);
  EXPECT_EQ(config.model.activation, Activation::kRelu);
  EXPECT_EQ(config.optim.name, OptimizerKind::kSgd);
  EXPECT_EQ(config.optim.schedule, LrSchedule::kConstant);
  EXPECT_EQ(config.data.format, TokenFormat::kUint16);
  EXPECT_EQ(config.train.dtype, DType::kBF16);
  EXPECT_EQ(config.comm.wire, DType::kF32);
  EXPECT_EQ(parse("[comm]\nwire = \"model\"").comm.wire, std::nullopt);
  EXPECT_FALSE(exchanges_tokens(config, 0));
  EXPECT_TRUE(exchanges_tokens(config, 1));
}

TEST(Config, KeysThatContradictEachOtherAreNamed) {
  EXPECT_EQ(error_of("[train]\nbatch_tokens = 4000"),
            "run.toml: train.batch_tokens is 4000, expected a multiple of data.seq_len * train.accumulation "
            "(128 * 1)");
  EXPECT_EQ(error_of("[train]\naccumulation = 3"),
            "run.toml: train.batch_tokens is 4096, expected a multiple of data.seq_len * train.accumulation "
            "(128 * 3)");
  EXPECT_EQ(error_of("[data]\nseq_len = 256"),
            "run.toml: data.seq_len is 256, expected at most model.max_seq_len (128)");
  EXPECT_EQ(error_of("[train]\nsteps = 5\nstop_at = 6"),
            "run.toml: train.stop_at is 6, expected at most train.steps (5)");
  EXPECT_EQ(error_of("[optim]\nwarmup_steps = 101"),
            "run.toml: optim.warmup_steps is 101, expected at most train.steps (100)");
  EXPECT_EQ(error_of("[parallel]\nexperts = [\"gather\", \"exchange\"]"),
            "run.toml: parallel.experts has 2 entries, expected 1 or one per layer (model.num_layers = 4)");
  EXPECT_NE(error_of("[parallel]\nexperts = []"), "no error");
  EXPECT_NE(error_of("[model]\nd_model = 130").find("num_heads"), std::string::npos);
  EXPECT_NE(error_of("[moe]\ngate = \"switch\"").find("top_k"), std::string::npos);
  EXPECT_EQ(error_of("", {"moe.top_kk=3"}),
            "--set moe.top_kk=3: unknown key moe.top_kk; did you mean moe.top_k?");
}

TEST(Config, AMissingFileIsNamed) {
  try {
    load_config("/nowhere/run.toml");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "cannot open /nowhere/run.toml: No such file or directory");
  }
}

}  // namespace
}  // namespace moesaic
