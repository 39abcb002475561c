#include "bench/weight_traces.h"

#include <fmt/ranges.h>

#include <chrono>

#include "bench/child_process.h"
#include "moesaic/core/error.h"
#include "moesaic/core/file.h"

namespace moesaic::bench {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// A stretch of one run, and the steps of it to look at.
struct Stretch {
  std::string name;                 // "lr4e-4"
  std::int64_t first = 0;           // steps that the run had made before it
  std::vector<std::int64_t> steps;  // counted from the stretch's start
  Words arguments;                  // of `moesaic train`
};

std::vector<Stretch> stretches_of(const std::string& size) {
  const bool tiny = size == "tiny";
  Words start = {"--ranks", "1"};
  const auto set = [](Words& arguments, const Words& values) {
    for (const std::string& value : values) arguments.insert(arguments.end(), {"--set", value});
  };
  set(start, {"moe.num_experts=64", "moe.top_k=4", "parallel.experts=\"gather\"", "optim.lr=4e-4",
              "optim.warmup_steps=20", "optim.final_lr_fraction=0.1", "train.steps=220", "train.eval_every=0",
              "train.eval_tokens=1024", "checkpoint.every=0"});
  Words fine_tuning = {"--resume"};
  set(fine_tuning, {"optim.lr=1e-5", "optim.schedule=\"constant\""});
  if (tiny) {
    set(start, {"model.d_model=32", "moe.d_expert=16", "moe.num_experts=8", "train.batch_tokens=128",
                "train.stop_at=5"});
    set(fine_tuning, {"train.stop_at=10"});
    return {{"lr4e-4", 0, {5}, start}, {"lr1e-5", 5, {5}, fine_tuning}};
  }
  set(start, {"parallel.threads_per_rank=2", "train.batch_tokens=8192", "train.stop_at=120"});
  set(fine_tuning, {"train.stop_at=150"});
  return {{"lr4e-4", 0, {5, 30, 120}, start}, {"lr1e-5", 120, {30}, fine_tuning}};
}

// With those before them, for coders that have settled: what receivers hold, and the tables they keep.
std::vector<std::int64_t> recorded_of(const Stretch& stretch) {
  std::vector<std::int64_t> recorded;
  for (const std::int64_t step : stretch.steps) {
    for (std::int64_t before = kTracedSteps - 1; before >= 0; --before) {
      recorded.push_back(stretch.first + step - before);
    }
  }
  return recorded;
}

Words command_of(const Stretch& stretch, const fs::path& folder) {
  Words words = {(fs::path(own_path()).parent_path() / "moesaic").string(), "train"};
  if (stretch.first == 0) words.insert(words.end(), {"--config", MOESAIC_SOURCE_DIR "/configs/demo.toml"});
  words.insert(words.end(), stretch.arguments.begin(), stretch.arguments.end());
  words.insert(words.end(), {"--run-dir", (folder / "run").string(), "--no-report", "--record-weights",
                             (folder / stretch.name).string(), "--record-steps",
                             fmt::format("{}", fmt::join(recorded_of(stretch), ","))});
  return words;
}

// What the traces hang on: another recipe gives other traces.
std::string recipe_of(const std::vector<Stretch>& stretches) {
  std::string text;
  for (const Stretch& stretch : stretches) {
    text += fmt::format("{} {}: {}\n", stretch.name, fmt::join(recorded_of(stretch), ","),
                        fmt::join(stretch.arguments, " "));
  }
  return text;
}

// The traces in `folder`, made there unless they are.
void record(const std::vector<Stretch>& stretches, const fs::path& folder) {
  const std::string recipe = recipe_of(stretches);
  if (fs::exists(folder / "recipe.txt")) {
    if (read_text(folder / "recipe.txt") == recipe) return;
    throw Error(fmt::format("{} holds traces of another recipe: remove it, or choose another --traces",
                            folder.string()));
  }
  const fs::path staged = folder.string() + ".tmp";
  fs::remove_all(staged);
  fs::create_directories(staged);
  const auto start = std::chrono::steady_clock::now();
  fmt::print("recording weights into {}: minutes of training\n", folder.string());
  for (const Stretch& stretch : stretches) {
    ChildProcess trainer("moesaic train", command_of(stretch, staged));
    while (!trainer.receive_or_end().is_null()) {
    }
  }
  write_text_synced(staged / "recipe.txt", recipe);
  rename_path(staged, folder);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print("recorded in {:.0f} s\n", took.count());
}

}  // namespace

std::vector<RecordedStep> recorded_steps(const std::string& size, const fs::path& traces) {
  const std::vector<Stretch> stretches = stretches_of(size);
  const fs::path folder = fs::absolute(traces) / size;
  record(stretches, folder);
  std::vector<RecordedStep> recorded;
  for (const Stretch& stretch : stretches) {
    for (const std::int64_t step : stretch.steps) {
      recorded.push_back(
          {fmt::format("{} step{}", stretch.name, step), folder / stretch.name, stretch.first + step});
    }
  }
  return recorded;
}

}  // namespace moesaic::bench
