// The trainer against the same model in plain PyTorch: transformers' OLMoE, from the same initial weights on
// the same data in the same order, fp32, torch's fused AdamW, scaled-dot-product attention. Each program is a
// child process of two threads; they take turns step by step, and who waits sleeps on its pipe. All three get
// the malloc settings that `moesaic` itself uses (freed memory is kept). Losses must agree at every step, and
// gradient norms at the first ones (later a routing tie may flip), else there is no time.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "bench/benchmarks.h"
#include "bench/child_process.h"
#include "bench/temporary_folder.h"
#include "bench/turns.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"
#include "moesaic/train/config.h"

namespace moesaic::bench {
namespace {

constexpr double kLossTolerance = 1e-4;  // relative, fp32
constexpr double kNormTolerance = 1e-4;
constexpr std::size_t kNormSteps = 3;
constexpr int kWarmUpSteps = 2;

struct Workload {
  std::string name;
  std::string config;  // relative to the source directory
  std::vector<std::string> overrides;
  int steps;
};

// What both programs need the same, whatever the configuration is for.
const std::vector<std::string> kCommon = {
    "parallel.ranks=1",     "parallel.threads_per_rank=2", "optim.schedule=\"constant\"",
    "optim.warmup_steps=0", "moe.balance_loss=0.0",        "moe.z_loss=0.0",
    "train.steps=1000000",
};

std::vector<Workload> workloads(const std::string& size) {
  const std::string small = "bench/small_olmoe.toml", demo = "configs/demo.toml";
  const std::string one_file = fmt::format("data.files=[\"{}/data/shakespeare.txt\"]", MOESAIC_SOURCE_DIR);
  if (size == "tiny") {
    return {{"tiny fp32",
             small,
             {"model.vocab_size=256", "model.num_layers=1", "model.d_model=32", "moe.num_experts=4",
              "moe.top_k=2", "moe.d_expert=16", "data.seq_len=16", "train.batch_tokens=64"},
             2}};
  }
  return {{"small_olmoe 2048 seq512 fp32", small, {}, 15},
          {"small_olmoe 2048 seq128 fp32", small, {"data.seq_len=128"}, 15},
          {"demo 2048 seq128 fp32", demo, {one_file, "optim.lr=1e-3"}, 21}};
}

struct Program {
  std::string variant;
  std::unique_ptr<ChildProcess> process;
  std::vector<double> losses{}, norms{};

  void step() {
    const nlohmann::json done = process->ask("step");
    losses.push_back(done.at("loss"));
    norms.push_back(done.at("gradient_norm"));
  }
};

bool near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance * std::abs(b); }

// "" or where two programs part.
std::string difference(const Program& ours, const Program& peer) {
  for (std::size_t step = 0; step < ours.losses.size(); ++step) {
    if (!near(ours.losses[step], peer.losses[step], kLossTolerance)) {
      return fmt::format("the loss of step {} is {}, {} has {}", step + 1, ours.losses[step], peer.variant,
                         peer.losses[step]);
    }
    if (step < kNormSteps && !near(ours.norms[step], peer.norms[step], kNormTolerance)) {
      return fmt::format("the gradient norm of step {} is {}, {} has {}", step + 1, ours.norms[step],
                         peer.variant, peer.norms[step]);
    }
  }
  return "";
}

void compare(Report& report, const Workload& workload, const std::string& python) {
  const TemporaryFolder folder;
  const std::filesystem::path config_file = folder.path() / "config.toml",
                              checkpoints = folder.path() / "checkpoints";
  std::vector<std::string> overrides = kCommon;
  overrides.insert(overrides.end(), workload.overrides.begin(), workload.overrides.end());
  const Config config = load_config(std::filesystem::path(MOESAIC_SOURCE_DIR) / workload.config, overrides);
  write_text_synced(config_file, to_toml(config));

  std::vector<Program> programs;
  programs.push_back({"moesaic", std::make_unique<ChildProcess>(
                                     "moesaic",
                                     std::vector<std::string>{own_path(), "steps", config_file.string(),
                                                              checkpoints.string()},
                                     kKeepFreedMemory)});
  const std::string checkpoint = programs.back().process->receive().at("checkpoint");
  for (const std::string experts : {"grouped_mm", "eager"}) {
    const std::string variant = "transformers_" + experts;
    programs.push_back(
        {variant, std::make_unique<ChildProcess>(
                      variant,
                      std::vector<std::string>{python, MOESAIC_SOURCE_DIR "/bench/peers/olmoe_steps.py",
                                               config_file.string(), checkpoint, experts, "2"},
                      kKeepFreedMemory)});
    programs.back().process->receive();
  }

  std::vector<Contender> contenders;
  for (Program& program : programs) {
    for (int step = 0; step < kWarmUpSteps; ++step) program.step();
    contenders.push_back({program.variant, [&program] { program.step(); }});
  }
  take_turns(contenders, workload.steps);

  for (const Program& peer : programs) {
    const std::string wrong = difference(programs.front(), peer);
    if (!wrong.empty()) return report.fail(workload.name, "moesaic", "tokens_per_s", "tokens/s", wrong);
  }
  add_times(report, workload.name, "step_us", contenders);
  for (const Contender& contender : contenders) {
    const double tokens_per_s =
        static_cast<double>(config.train.batch_tokens) / summarize(contender.us).median * 1e6;
    report.add({workload.name, contender.variant, "tokens_per_s", tokens_per_s, "tokens/s", true});
  }
  for (const Contender& contender : contenders) {
    if (contender.variant == "moesaic") continue;
    report.add({workload.name, "moesaic", "tokens_per_s_over_" + contender.variant,
                median_ratio(contender, contenders.front()), "ratio", true});
  }
}

}  // namespace

Benchmark train_tokens(const std::string& python) {
  return {.name = "train_tokens",
          .about = "The trainer against transformers' OLMoE in PyTorch, one process of two threads each",
          .threads = 2,
          .sizes = {"standard", "tiny"},
          .run = [python](Report& report, const std::string& size) {
            for (const Workload& workload : workloads(size)) compare(report, workload, python);
          }};
}

}  // namespace moesaic::bench
